'use strict';
(() => {
  const plan = JSON.parse(document.getElementById('plan').textContent);
  const $ = id => document.getElementById(id);

  // el makes an element. What comes from the plan becomes text and is never read as HTML.
  function el(tag, attributes, ...children) {
    const [name, ...classes] = tag.split('.');
    const e = document.createElement(name);
    if (classes.length) e.className = classes.join(' ');
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    e.append(...children.flat(Infinity).filter(c => c || c === 0));
    return e;
  }

  ///// What the plan says, by member and owner

  // What happens, the worst first: what a cell shows is the worst of its changes.
  const kinds = {
    delete: ['−', 'deleted'],
    orphan: ['○', 'left on the member without anybody’s care'],
    recreate: ['±', 'deleted and created anew'],
    hold: ['=', 'held: cannot be rendered, so it stays as it is'],
    update: ['~', 'updated'],
    create: ['+', 'created'],
    unknown: ['?', 'not known what changes'],
    unchanged: ['·', 'unchanged'],
  };
  const order = Object.keys(kinds);
  const hub = 'hub'; // the key of the row of what all members share; those of members have a slash

  // What is over budget is the worst that there is.
  function overBudget(plan) {
    return (plan.overBudget || []).map(o => ({kind: o.allowed ? 'Allowed' : 'OverBudget', owner: o.owner,
      message: `${o.over.join('; ')}${o.allowed ? ': allowed by its annotation' : ': to allow just this, annotate it with fleet.kurator.dev/allow-change: ' + o.allow}`}));
  }
  const changes = plan.changes || [], dangers = overBudget(plan).concat(plan.dangers || []), problems = plan.problems || [], owners = plan.owners || [];
  const joining = plan.members.joining || [], leaving = plan.members.leaving || [];
  const columns = new Map(), rows = new Map(), namespaces = new Set();

  function column(ref) {
    const key = [ref.namespace, ref.kind, ref.name].join('/');
    if (!columns.has(key)) {
      columns.set(key, {key, ref, changes: [], dangers: [], problems: [], applications: []});
      namespaces.add(ref.namespace);
    }
    return columns.get(key);
  }

  function row(namespace, name) {
    const key = name ? namespace + '/' + name : hub;
    if (!rows.has(key)) rows.set(key, {key, namespace, name, cells: new Map(), rank: 4});
    return rows.get(key);
  }

  function cell(ref, member) {
    const c = column(ref), r = row(ref.namespace, member);
    if (!r.cells.has(c)) r.cells.set(c, {changes: [], dangers: [], problems: [], children: [], state: 'unchanged'});
    return r.cells.get(c);
  }

  const cellsOf = (ref, members) => (members && members.length ? members : ['']).map(member => cell(ref, member));

  for (const owner of owners) {
    column(owner).applications = owner.applications || [];
    for (const application of owner.applications || []) {
      for (const child of application.children || []) cell(owner, child.member).children.push(child);
    }
  }
  for (const change of changes) {
    change.state = stateOf(change);
    change.text = textOf(change).toLowerCase();
    column(change.owner).changes.push(change);
    for (const c of cellsOf(change.owner, change.members)) {
      c.changes.push(change);
      if (order.indexOf(change.state) < order.indexOf(c.state)) c.state = change.state;
    }
  }
  for (const problem of problems) {
    column(problem.owner).problems.push(problem);
    for (const c of cellsOf(problem.owner, problem.members)) {
      c.problems.push(problem);
      if (!problem.warning && !c.changes.length && !c.children.length) c.state = 'unknown';
    }
  }
  for (const danger of dangers) {
    if (danger.owner) {
      column(danger.owner).dangers.push(danger);
      for (const c of cellsOf(danger.owner, danger.members)) c.dangers.push(danger);
      continue;
    }
    for (const m of leaving.filter(m => (danger.members || []).includes(m.name))) {
      for (const c of row(m.namespace, m.name).cells.values()) if (c.changes.length) c.dangers.push(danger);
    }
  }
  for (const m of joining) row(m.namespace, m.name).joins = m;
  for (const m of leaving) row(m.namespace, m.name).leaves = m;

  const many = namespaces.size > 1; // only then does a namespace tell anything
  for (const r of rows.values()) {
    r.label = r.key === hub ? 'the hub' : (many ? r.namespace + '/' : '') + r.name;
    r.text = r.label.toLowerCase();
    const cells = [...r.cells.values()];
    if (cells.some(c => c.changes.length)) r.rank = 2;
    if (cells.some(c => c.dangers.length)) r.rank = 1;
    if (r.leaves) r.rank = 0;
    if (r.key === hub) r.rank = -1;
  }
  for (const c of columns.values()) {
    c.label = (many ? c.ref.namespace + '/' : '') + c.ref.name;
    c.text = [c.ref.kind, c.label, ...c.applications.map(a => a.name)].join(' ').toLowerCase();
  }
  const collator = new Intl.Collator('en', {numeric: true});
  const allRows = [...rows.values()].sort((a, b) => a.rank - b.rank || collator.compare(a.label, b.label));
  const allColumns = [...columns.values()].sort((a, b) => collator.compare(a.ref.kind, b.ref.kind) || collator.compare(a.label, b.label));

  function stateOf(change) {
    if (change.action !== 'update') return change.action;
    if ((change.objects || []).some(o => o.action === 'recreate' || (o.immutable || []).length)) return 'recreate';
    return change.unknown && !(change.fields || []).length ? 'unknown' : 'update';
  }

  function textOf(change) {
    const objects = (change.objects || []).map(o => [o.action, o.kind, o.namespace, o.name].join(' '));
    return [change.action, change.state, change.kind, change.name, change.application, change.policy, change.unknown && 'unknown', ...objects].join(' ');
  }

  ///// Words

  const plural = (n, what) => n + ' ' + what + (n === 1 ? '' : 's');
  const some = (names, most) => names.length > most + 1 ? names.slice(0, most).join(', ') + ' and ' + (names.length - most) + ' more' : names.join(', ');
  const nameOf = o => o.kind + ' ' + (o.namespace ? o.namespace + '/' : '') + o.name;
  const short = digest => (digest || '').replace(/^(sha256:)?(.{12}).*$/, '$2');
  const dash = digest => digest ? el('code', {title: digest}, short(digest)) : el('span.muted', {}, 'none');

  function badge(state) {
    return el('span.badge.' + state, {}, el('span', {'aria-hidden': 'true'}, kinds[state][0] + ' '), state);
  }

  // memberList names a few members, and all of them when it is opened.
  function memberList(on, members) {
    if (members.length <= 6) return el('p.members', {}, on, members.join(', '));
    return el('details.members', {}, el('summary', {}, on, some(members, 5)), members.join(', '));
  }

  ///// The top of the page

  function header() {
    const m = plan.members;
    let text = changes.length ? `${m.changed} of ${plural(m.total, 'member')} change` : `Nothing changes on ${plural(m.total, 'member')}`;
    if (changes.length && !m.changed) text = 'Only the hub changes';
    if (joining.length) text += `, ${joining.length} joining`;
    if (leaving.length) text += `, ${leaving.length} leaving`;
    $('summary').textContent = text;
    for (const [what, state] of [['From', plan.from], ['To', plan.to]]) {
      $('states').append(el('div', {}, el('dt', {}, what), el('dd', {}, el('span.state', {}, state.name), ' ', state.digest && dash(state.digest))));
    }
    list('dangers', 'Danger', dangers, 5, d => d.kind, d => [
      opener(d.owner ? `${d.owner.kind} ${d.owner.name}` : 'member ' + (d.members || []).join(', '), d.owner ? column(d.owner) : null, d.owner ? null : rowOf(d)),
      ' ', d.message, d.owner && (d.members || []).length ? [' · ', plural(d.members.length, 'member'), ': ', some(d.members, 5)] : '',
    ]);
    list('problems', 'Problem', problems, 4, p => (p.warning ? 'warning' : 'error') + (p.new ? '' : ', as before'), p => [
      opener(`${p.owner.kind} ${p.owner.name}`, column(p.owner)), ' ',
      p.policy ? `policy ${p.policy}: ` : '', p.message, (p.members || []).length ? ' · ' + some(p.members, 5) : '',
    ]);
    list('unknowns', 'Not compared on members', plan.unknown || [], 3, null, u => [u.message, ' · ', plural(u.children, 'object'), ' on the hub']);
  }

  const rowOf = d => allRows.find(r => r.leaves && d.members && d.members.includes(r.name));

  function opener(text, c, r) {
    const b = el('button.link', {type: 'button'}, text);
    b.addEventListener('click', () => open(r || null, c || null));
    return b;
  }

  // list shows the first few, which are the worst, and the others on demand.
  function list(id, title, items, most, kind, content) {
    if (!items.length) return;
    if (items.length === most + 1) most++;
    const li = item => el('li', {}, kind && [el('b', {}, kind(item)), ' '], el('span', {}, content(item)));
    const heading = id === 'unknowns' ? title : plural(items.length, title.toLowerCase());
    const rest = items.slice(most);
    $('findings').append(el('section.' + id, {'aria-label': heading}, el('h2', {}, heading), el('ul', {}, items.slice(0, most).map(li)),
      rest.length ? el('details', {}, el('summary', {}, `${rest.length} more`), el('ul', {}, rest.map(li))) : ''));
  }

  function legend() {
    const counts = {};
    for (const r of allRows) for (const c of r.cells.values()) counts[c.state] = (counts[c.state] || 0) + 1;
    for (const state of order.filter(s => counts[s])) {
      const b = el('button.badge.' + state, {type: 'button', title: kinds[state][1], 'data-state': state, 'aria-pressed': 'false'},
        el('span', {'aria-hidden': 'true'}, kinds[state][0] + ' '), state, ' ', el('span.n', {}, counts[state]));
      b.addEventListener('click', () => {
        view.state = view.state === state ? '' : state;
        draw();
      });
      $('legend').append(b);
    }
  }

  ///// The grid

  const view = {q: '', state: '', changed: false, dangerous: false, row: null, column: null};
  let shownRows = [], shownColumns = [], at = [0, 0]; // at is where the focus is, or comes to, in the grid
  const maxRows = 2000; // of which a browser lays out those in sight

  function matcher() {
    const words = view.q.toLowerCase().split(/\s+/).filter(Boolean).map(word => [word, new Set(changes.filter(c => c.text.includes(word)))]);
    return (r, c, x) => (!view.changed || x.changes.length) && (!view.dangerous || x.dangers.length) && (!view.state || x.state === view.state) &&
      words.every(([word, has]) => r.text.includes(word) || c.text.includes(word) || x.state.startsWith(word) || x.changes.some(change => has.has(change)));
  }

  function draw() {
    const matches = matcher(), hits = new Set();
    const rowsWith = new Set(), columnsWith = new Set();
    for (const r of allRows) {
      for (const [c, x] of r.cells) {
        if (!matches(r, c, x)) continue;
        hits.add(x);
        rowsWith.add(r);
        columnsWith.add(c);
      }
    }
    shownRows = allRows.filter(r => rowsWith.has(r));
    const columnsNow = allColumns.filter(c => columnsWith.has(c));
    if (columnsNow.length !== shownColumns.length || columnsNow.some((c, i) => c !== shownColumns[i])) shownColumns = columnsNow;
    const total = shownRows.length;
    shownRows = shownRows.slice(0, maxRows);

    focusable(false);
    const grid = $('grid'), hadFocus = grid.contains(document.activeElement) && document.activeElement !== grid;
    const lines = [el('div.row.head', {role: 'row', 'aria-rowindex': 1}, el('div.corner', {role: 'columnheader', tabindex: -1}, 'Member'), shownColumns.map(headerCell))];
    shownRows.forEach((r, i) => lines.push(line(r, i, hits)));
    grid.style.setProperty('--columns', shownColumns.length);
    grid.setAttribute('aria-rowcount', total + 1);
    grid.setAttribute('aria-colcount', shownColumns.length + 1);
    grid.replaceChildren(...lines);
    at = [Math.min(at[0], shownRows.length), Math.min(at[1], shownColumns.length)];
    focusable(true);
    if (hadFocus) focusCell();
    mark();

    const members = [...rowsWith].filter(r => r.key !== hub).length, all = allRows.filter(r => r.key !== hub).length;
    $('scroller').hidden = $('keys').hidden = !total;
    $('count').textContent = !allColumns.length ? 'There is nothing that members have.' : !total ? 'Nothing matches the filter.' :
      `${members === all ? plural(all, 'member') : members + ' of ' + plural(all, 'member')}, ${shownColumns.length} of ${plural(allColumns.length, 'column')}` +
      (total > maxRows ? `; the first ${maxRows} are shown, filter to see others` : '');
    for (const b of $('legend').children) b.setAttribute('aria-pressed', String(b.dataset.state === view.state));
    remember();
  }

  function headerCell(c) {
    return el('div.column' + (c.dangers.length ? '.danger' : ''), {role: 'columnheader', tabindex: -1, title: c.ref.kind + ' ' + c.label},
      el('span.kind', {}, c.ref.kind), el('span.name', {}, c.label));
  }

  // line returns the row of a member. It and its cells are made once: filtering only takes away and brings back.
  function line(r, i, hits) {
    if (!r.line) {
      const fate = r.joins ? 'joins' : r.leaves ? 'leaves' : '';
      r.line = el('div.row' + (r.key === hub ? '.hub' : ''), {role: 'row'});
      r.header = el('div.member', {role: 'rowheader', tabindex: -1, title: r.key === hub ? 'what all members share' : r.label}, el('span.name', {}, r.label), fate && el('span.fate.' + fate, {}, fate));
    }
    r.line.setAttribute('aria-rowindex', i + 2);
    if (r.drawn !== shownColumns) {
      r.line.replaceChildren(r.header, ...shownColumns.map(c => gridCell(r, c, r.cells.get(c))));
      r.drawn = shownColumns;
    }
    for (const x of r.cells.values()) if (x.element) x.element.classList.toggle('dim', !hits.has(x));
    return r.line;
  }

  function gridCell(r, c, x) {
    if (!x) return el('div', {role: 'gridcell', tabindex: -1, 'aria-label': `${r.label}, ${c.ref.kind} ${c.label}: not there`});
    if (x.element) return x.element;
    const objects = new Set(x.changes.flatMap(change => (change.objects || []).map(nameOf))).size;
    const danger = x.dangers.length > 0, problem = x.problems.some(p => !p.warning);
    const label = [kinds[x.state][1], objects && plural(objects, 'object'), danger && 'dangerous', problem && 'with a problem'].filter(Boolean).join(', ');
    x.element = el('div.' + x.state + (danger ? '.danger' : ''), {role: 'gridcell', tabindex: -1, 'aria-label': `${r.label}, ${c.ref.kind} ${c.label}: ${label}`},
      kinds[x.state][0], objects ? el('span.n', {}, objects) : '', danger ? el('span.mark', {}, '!') : '', problem ? el('span.mark', {}, '×') : '');
    return x.element;
  }

  const cellAt = ([r, c]) => $('grid').children[r] && $('grid').children[r].children[c];
  const placeOf = e => [e.parentNode.getAttribute('aria-rowindex') - 1, [...e.parentNode.children].indexOf(e)];

  // One cell of the grid is where Tab goes.
  function focusable(yes) {
    const e = cellAt(at);
    if (e) e.tabIndex = yes ? 0 : -1;
  }

  function focusCell() {
    const e = cellAt(at);
    if (e) e.focus();
  }

  function move(to) {
    focusable(false);
    at = [Math.max(0, Math.min(to[0], shownRows.length)), Math.max(0, Math.min(to[1], shownColumns.length))];
    focusable(true);
    focusCell();
  }

  function place(r, c) {
    return [r ? shownRows.indexOf(r) + 1 : 0, c ? shownColumns.indexOf(c) + 1 : 0];
  }

  // mark says which cell, row or column the details are of.
  function mark() {
    for (const e of $('grid').querySelectorAll('[aria-selected]')) e.removeAttribute('aria-selected');
    const [r, c] = place(view.row, view.column);
    if (!view.row && !view.column || view.row && !r || view.column && !c) return;
    cellAt([r, c]).setAttribute('aria-selected', 'true');
  }

  ///// The details

  function open(r, c, quietly) {
    view.row = r;
    view.column = c;
    details();
    const to = place(r, c);
    if ((r || c) && !(r && !to[0]) && !(c && !to[1])) { // it is among those shown
      focusable(false);
      at = to;
      focusable(true);
    }
    mark();
    remember();
    if (quietly || !r && !c) return;
    const e = cellAt(at);
    if (e) e.scrollIntoView({block: 'nearest', inline: 'nearest'}); // the grid has less room now
    $('details-title').focus();
  }

  function close() {
    open(null, null, true);
  }

  function details() {
    const r = view.row, c = view.column, box = $('details');
    box.hidden = !r && !c;
    document.body.classList.toggle('open', !box.hidden);
    if (box.hidden) return box.replaceChildren();
    const closer = el('button.close', {type: 'button', 'aria-label': 'Close the details', title: 'Esc'}, '×');
    closer.addEventListener('click', () => {
      close();
      focusCell();
    });
    const x = r && c ? r.cells.get(c) : null;
    const title = el('h2', {id: 'details-title', tabindex: -1}, r ? el('span.name', {}, r.key === hub ? 'the hub, for all members' : r.label) : '', r && c ? ' · ' : '', c ? [el('span.muted', {}, c.ref.kind), ' ', c.label] : '');
    let found = changes, risks = [], faults = [];
    if (r && c) [found, risks, faults] = x ? [x.changes, x.dangers, x.problems] : [[], [], []];
    else if (c) [found, risks, faults] = [c.changes, c.dangers, c.problems];
    else {
      const cells = [...r.cells.values()];
      [found, risks, faults] = [cells.flatMap(x => x.changes), [...new Set(cells.flatMap(x => x.dangers))], cells.flatMap(x => x.problems)];
    }
    box.replaceChildren(el('div.title', {}, title, closer));
    const fate = r && !c && (r.joins || r.leaves);
    if (fate) {
      const lists = [['gets', fate.gets], ['loses', fate.loses], ['keeps, without anybody’s care', fate.keeps]];
      box.append(el('p', {}, r.joins ? 'Joins.' : 'Leaves.', lists.map(([verb, what]) => what && what.length ? ` It ${verb} ${some(what, 8)}.` : '')));
    }
    if (risks.length) box.append(el('ul.dangers', {}, risks.map(d => el('li', {}, el('b', {}, d.kind), ' ', r && !c && d.owner ? `${d.owner.kind} ${d.owner.name} ` : '', d.message))));
    if (faults.length) box.append(el('ul.problems', {}, faults.map(p => el('li', {}, el('b', {}, p.warning ? 'warning' : 'error'), ' ', p.policy ? `policy ${p.policy}: ` : '', p.message))));
    if (!found.length) box.append(el('p.muted', {}, r && c && !x ? 'There is nothing of it here.' : 'Nothing changes here.'));
    append(box, found, r, c);
    if (c) box.append(digests(r, c, x));
    box.scrollTop = 0;
  }

  // append adds changes, some at a time: a column may have hundreds.
  function append(box, found, r, c) {
    const most = 30, folded = found.length > 6;
    for (const item of found.slice(0, most)) box.append(changeBox(item, r, c, folded));
    if (found.length <= most) return;
    const more = el('button', {type: 'button'}, `Show ${found.length - most} more`);
    more.addEventListener('click', () => {
      const rest = el('div', {tabindex: -1});
      append(rest, found.slice(most), r, c);
      more.replaceWith(rest);
      rest.focus();
    });
    box.append(more);
  }

  function changeBox(change, r, c, folded) {
    const what = [change.kind, change.name, !c && `${change.owner.kind} ${change.owner.name}`, change.application !== change.owner.name && 'Application ' + change.application,
      change.policy && 'policy ' + change.policy].filter(Boolean).join(' · ');
    const members = change.members || [], others = r ? members.filter(m => m !== r.name) : members;
    const objects = change.objects || [];
    return el('details.change', folded ? {} : {open: ''},
      el('summary', {}, badge(change.state), ' ', el('span.what', {}, what), !r && members.length ? el('span.muted', {}, ' · ', plural(members.length, 'member')) : ''),
      others.length ? memberList(r ? 'The same on ' : 'On ', others) : '',
      change.reason && el('p', {}, change.reason),
      change.action === 'orphan' && !change.reason && el('p', {}, 'It ends on the hub. What it has put on the member stays there, without anybody’s care.'),
      change.unknown && el('p.note', {}, 'What changes on the member is not known: ', change.unknown),
      (change.fields || []).length ? [el('h3', {}, 'On the hub'), fieldList(change.fields)] : '',
      objects.length ? [el('h3', {}, 'On the member, ', plural(objects.length, 'object')), objects.map(o => objectBox(o, objects.length > 12))] : '');
  }

  function objectBox(o, folded) {
    const notes = [o.movedFrom && 'handed over from ' + o.movedFrom, (o.immutable || []).length ? o.immutable.join(', ') + ' cannot be changed' : '', o.action === 'orphan' && 'stays, without anybody’s care'].filter(Boolean).join('; ');
    const head = [badge(o.action), ' ', el('span.what', {title: o.apiVersion}, nameOf(o)), notes ? el('span.muted', {}, ' ', notes) : ''];
    if (!(o.fields || []).length) return el('div.object', {}, head);
    return el('details.object', folded ? {} : {open: ''}, el('summary', {}, head), fieldList(o.fields));
  }

  const fieldList = fields => el('ul.fields', {}, fields.map(f => el('li' + (String(f.from || '').length + String(f.to || '').length > 40 ? '.long' : ''), {}, el('code.path', {}, f.path), field(f))));

  function field(f) {
    const was = f.from !== undefined && f.from !== null, is = f.to !== undefined && f.to !== null;
    const hidden = f.hidden && el('span.hidden', {}, was || is ? 'some values are not shown' : 'changes; the values are not shown');
    if (!was && !is) return hidden || el('span.muted', {}, 'changes');
    const from = was ? valueText(f.from) : '', to = is ? valueText(f.to) : '';
    if ((from + to).includes('\n')) return [lineDiff(was ? from : null, is ? to : null), hidden];
    if (!is) return el('span.values', {}, el('del', {}, '− ', from), hidden);
    if (!was) return el('span.values', {}, el('ins', {}, '+ ', to), hidden);
    return el('span.values', {}, el('del', {}, from), el('span.arrow', {role: 'img', 'aria-label': 'becomes'}, '→'), el('ins', {}, to), hidden);
  }

  function valueText(v) {
    if (typeof v === 'string') return v === '' || v !== v.trim() && !v.includes('\n') ? JSON.stringify(v) : v.replace(/\n$/, '');
    return typeof v === 'object' ? yaml(v, '').replace(/^\n/, '') : JSON.stringify(v);
  }

  function yaml(v, indent) {
    if (v === null || typeof v !== 'object') {
      if (typeof v === 'string' && v.includes('\n')) return ' |\n' + v.replace(/\n$/, '').split('\n').map(l => indent + l).join('\n');
      return ' ' + (typeof v === 'string' && /^[\w./][\w./@+-]*$/.test(v) && isNaN(v) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(v) ? v : JSON.stringify(v));
    }
    const inner = indent + '  ';
    if (Array.isArray(v)) return v.length ? '\n' + v.map(item => indent + '-' + yaml(item, inner).replace(/^\n\s*/, ' ')).join('\n') : ' []';
    const keys = Object.keys(v);
    return keys.length ? '\n' + keys.map(key => indent + key + ':' + yaml(v[key], inner)).join('\n') : ' {}';
  }

  // lineDiff shows two texts as one, with three lines around what changes.
  function lineDiff(from, to) {
    const out = el('pre.diff', {tabindex: 0, role: 'group', 'aria-label': 'line by line'});
    const lines = compare(from === null ? [] : from.split('\n'), to === null ? [] : to.split('\n'));
    const near = lines.map(() => false);
    lines.forEach(([sign], i) => {
      if (sign !== ' ') near.fill(true, Math.max(0, i - 3), i + 4);
    });
    let left = 0;
    const flush = () => {
      if (left) out.append(el('span.skipped', {}, `  … ${plural(left, 'line')} the same\n`));
      left = 0;
    };
    lines.forEach(([sign, text], i) => {
      if (!near[i]) return left++;
      flush();
      out.append(el(sign === '+' ? 'ins' : sign === '-' ? 'del' : 'span', {}, sign + ' ' + text + '\n'));
    });
    flush();
    return out;
  }

  // compare finds the longest common lines; of very long texts, those at the start and the end alone.
  function compare(a, b) {
    let start = 0, end = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start++;
    while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
    const out = a.slice(0, start).map(l => [' ', l]);
    const x = a.slice(start, a.length - end), y = b.slice(start, b.length - end);
    if (x.length * y.length > 1e6) out.push(...x.map(l => ['-', l]), ...y.map(l => ['+', l]));
    else {
      const width = y.length + 1, best = new Uint32Array((x.length + 1) * width);
      for (let i = x.length - 1; i >= 0; i--) {
        for (let j = y.length - 1; j >= 0; j--) {
          best[i * width + j] = x[i] === y[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
        }
      }
      let i = 0, j = 0;
      while (i < x.length || j < y.length) {
        if (i < x.length && j < y.length && x[i] === y[j]) {
          out.push([' ', x[i++]]);
          j++;
        } else if (i < x.length && (j === y.length || best[(i + 1) * width + j] >= best[i * width + j + 1])) out.push(['-', x[i++]]);
        else out.push(['+', y[j++]]);
      }
    }
    return [...out, ...a.slice(a.length - end).map(l => [' ', l])];
  }

  function digests(r, c, x) {
    const items = r ? (x ? x.children : []).map(child => [`${child.kind} ${child.name}`, [dash(child.digest)]]) :
      c.applications.map(a => ['Application ' + a.name, a.was === a.digest ? [dash(a.digest)] : [dash(a.was), ' → ', dash(a.digest)]]);
    return items.length ? el('details.digests', {}, el('summary', {}, 'Digests'), el('ul', {}, items.map(([name, of]) => el('li', {}, name, ' ', of)))) : '';
  }

  ///// What is chosen is in the address, so that a link shows the same

  let remembered = '';
  function remember() {
    const hash = new URLSearchParams();
    for (const [key, value] of [['q', view.q], ['state', view.state], ['changed', view.changed && '1'], ['dangerous', view.dangerous && '1'], ['member', view.row && view.row.key], ['owner', view.column && view.column.key]]) {
      if (value) hash.set(key, value);
    }
    remembered = hash.toString();
    if (remembered !== location.hash.slice(1)) history.replaceState(null, '', '#' + remembered);
  }

  function recall() {
    const hash = new URLSearchParams(location.hash.slice(1));
    Object.assign(view, {q: hash.get('q') || '', state: kinds[hash.get('state')] ? hash.get('state') : '', changed: hash.has('changed'), dangerous: hash.has('dangerous')});
    $('filter').value = view.q;
    $('changed').checked = view.changed;
    $('dangerous').checked = view.dangerous;
    const r = rows.get(hash.get('member')), c = columns.get(hash.get('owner'));
    view.row = r || null;
    view.column = c || null;
    draw();
    open(view.row, view.column, true);
  }

  ///// Events

  const grid = $('grid');
  const openAt = ([r, c]) => {
    if (r || c) open(shownRows[r - 1] || null, shownColumns[c - 1] || null);
  };
  const cellOf = e => e.target.closest('[role=gridcell], [role=rowheader], [role=columnheader]');

  grid.addEventListener('click', e => {
    const cell = cellOf(e);
    if (cell) openAt(placeOf(cell));
  });
  grid.addEventListener('mouseover', e => {
    const cell = cellOf(e);
    if (cell && !cell.title) cell.title = cell.getAttribute('aria-label') || '';
  });
  grid.addEventListener('focusin', e => {
    if (e.target === grid) return focusCell(); // from the skip link
    const cell = cellOf(e);
    if (!cell || cell === cellAt(at)) return;
    focusable(false);
    at = placeOf(cell);
    focusable(true);
  });
  grid.addEventListener('keydown', e => {
    if (e.altKey || e.metaKey || e.shiftKey) return;
    const [r, c] = at, far = 1e9;
    const to = {
      ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], PageUp: [Math.max(r - 10, Math.min(r, 1)), c], PageDown: [r + 10, c],
      Home: e.ctrlKey ? [0, 0] : [r, 0], End: e.ctrlKey ? [far, far] : [r, far],
    }[e.key];
    if (to) move(to);
    else if (e.key === 'Enter' || e.key === ' ') openAt(at);
    else return;
    e.preventDefault();
  });
  document.addEventListener('keydown', e => {
    const typing = e.target === $('filter');
    if (e.key === '/' && !typing && !e.ctrlKey && !e.altKey && !e.metaKey) {
      e.preventDefault();
      $('filter').select();
    } else if (e.key === 'Escape' && typing && view.q) {
      $('filter').value = view.q = '';
      draw();
    } else if (e.key === 'Escape' && !$('details').hidden) {
      close();
      focusCell();
    }
  });

  let waiting = 0;
  $('filter').addEventListener('input', e => {
    view.q = e.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 80); // not for each letter of a word
  });
  for (const id of ['changed', 'dangerous']) {
    $(id).addEventListener('change', e => {
      view[id] = e.target.checked;
      draw();
    });
  }
  document.querySelector('.skip').addEventListener('click', e => {
    e.preventDefault(); // the address holds what is chosen
    focusCell();
  });
  addEventListener('hashchange', () => {
    if (location.hash.slice(1) !== remembered) recall();
  });

  header();
  legend();
  recall();
})();
