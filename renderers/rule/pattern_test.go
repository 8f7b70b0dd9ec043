package rule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/cel-go/cel"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// kubernetesCEL is the environment that Kyverno's policies are compiled in: that of the API server.
func kubernetesCEL(t testing.TB) *cel.Env {
	t.Helper()
	g := NewWithT(t)
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, 33)).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: []cel.EnvOption{cel.Variable("object", cel.DynType)}})
	g.Expect(err).NotTo(HaveOccurred())
	env, err := set.Env(environment.NewExpressions)
	g.Expect(err).NotTo(HaveOccurred())
	return env
}

func decodeYAML(t testing.TB, text string) (v any) {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	NewWithT(t).Expect(d.Decode(&v)).To(Succeed())
	return v
}

func plainYAML(t testing.TB, text string) (v any) {
	t.Helper()
	NewWithT(t).Expect(yaml.Unmarshal([]byte(text), &v)).To(Succeed())
	return v
}

// evaluatePattern compiles a pattern and evaluates what it becomes on an object.
func evaluatePattern(env *cel.Env, pattern, object any) (bool, string, error) {
	expression, err := patternCEL(pattern, "object")
	if err != nil {
		return false, "", err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return false, expression, fmt.Errorf("%s: %w", expression, issues.Err())
	}
	program, err := env.Program(ast, cel.CostLimit(10_000_000))
	if err != nil {
		return false, expression, err
	}
	out, _, err := program.Eval(map[string]any{"object": object})
	if err != nil {
		return false, expression, fmt.Errorf("%s: %w", expression, err)
	}
	return out.Value() == true, expression, nil
}

func TestPatterns(t *testing.T) {
	env := kubernetesCEL(t)
	for name, c := range map[string]struct {
		pattern, want string
		pass, fail    []string
	}{
		"fields": {
			pattern: `spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}}`,
			want: `object.?spec.?securityContext.?runAsNonRoot == optional.of(true) && ` +
				`object.?spec.?securityContext.?seccompProfile.?type == optional.of("RuntimeDefault")`,
			pass: []string{`spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}, x: 1}}`},
			fail: []string{`{}`, `spec: {}`, `spec: {securityContext: {runAsNonRoot: "true", seccompProfile: {type: RuntimeDefault}}}`,
				`spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: Unconfined}}}`, `spec: {securityContext: null}`},
		},
		"every item": {
			pattern: `spec: {containers: [{image: "!*:latest", resources: {limits: {memory: "?*"}}}]}`,
			pass:    []string{`spec: {containers: [{image: "a:1", resources: {limits: {memory: 1Gi}}}]}`, `spec: {containers: []}`},
			fail: []string{`spec: {containers: [{image: "a:1", resources: {limits: {memory: 1Gi}}}, {image: "a:latest", resources: {limits: {memory: 1Gi}}}]}`,
				`spec: {containers: [{image: "a:1"}]}`, `spec: {}`, `spec: {containers: [{image: "a:1", resources: {limits: {memory: ""}}}]}`},
		},
		"equality": {
			pattern: `spec: {=(hostNetwork): false, containers: [{=(securityContext): {=(privileged): "false"}}]}`,
			want: `(!object.?spec.?hostNetwork.hasValue() || (object.?spec.?hostNetwork == optional.of(false))) && ` +
				`object.?spec.?containers.hasValue() && object.?spec.?containers.value().all(item, (!item.?securityContext.hasValue() || ` +
				`(item.?securityContext.hasValue() && (!item.?securityContext.?privileged.hasValue() || (item.?securityContext.?privileged == optional.of(false) || item.?securityContext.?privileged == optional.of("false"))))))`,
			pass: []string{`spec: {containers: [{}]}`, `spec: {hostNetwork: false, containers: [{securityContext: {privileged: false}}]}`},
			fail: []string{`spec: {hostNetwork: true, containers: []}`, `spec: {containers: [{}, {securityContext: {privileged: true}}]}`},
		},
		"a map that has to be there": {
			pattern: `spec: {securityContext: {=(privileged): false}}`,
			pass:    []string{`spec: {securityContext: {}}`, `spec: {securityContext: {privileged: false}}`},
			fail:    []string{`spec: {}`, `{}`, `spec: {securityContext: {privileged: true}}`},
		},
		"negation": {
			pattern: `spec: {=(volumes): [{X(hostPath): null}]}`,
			pass:    []string{`spec: {}`, `spec: {volumes: [{emptyDir: {}}]}`},
			fail:    []string{`spec: {volumes: [{emptyDir: {}}, {hostPath: {path: /}}]}`},
		},
		"existence": {
			pattern: `spec: {^(containers): [{name: app}]}`,
			pass:    []string{`spec: {containers: [{name: other}, {name: app}]}`, `spec: {}`},
			fail:    []string{`spec: {containers: [{name: other}]}`},
		},
		"a condition leaves out items": {
			pattern: `spec: {containers: [{(image): "*:latest", imagePullPolicy: Always}]}`,
			pass:    []string{`spec: {containers: [{image: "a:1"}]}`, `spec: {containers: [{image: "a:1"}, {image: "a:latest", imagePullPolicy: Always}]}`},
			fail:    []string{`spec: {containers: [{image: "a:1"}, {image: "a:latest"}]}`},
		},
		"a condition leaves out objects": {
			pattern: `{metadata: {labels: {(tier): backend}}, spec: {replicas: ">=2"}}`,
			pass:    []string{`spec: {replicas: 1}`, `{metadata: {labels: {tier: front}}}`, `{metadata: {labels: {tier: backend}}, spec: {replicas: 2}}`},
			fail:    []string{`{metadata: {labels: {tier: backend}}, spec: {replicas: 1}}`},
		},
		"a global condition": {
			pattern: `spec: {<(hostNetwork): true, containers: [{ports: [{hostPort: "!22"}]}]}`,
			pass:    []string{`spec: {hostNetwork: false, containers: [{ports: [{hostPort: 22}]}]}`, `spec: {hostNetwork: true, containers: [{ports: [{hostPort: 80}]}]}`},
			fail:    []string{`spec: {hostNetwork: true, containers: [{ports: [{hostPort: 22}]}]}`},
		},
		"numbers and quantities": {
			pattern: `spec: {a: ">=2 & <10", b: "<=1Gi", c: "1-5", d: "5!-8", e: 80, f: "100m"}`,
			pass:    []string{`spec: {a: 2, b: 512Mi, c: 3, d: 9, e: 80, f: "0.1"}`, `spec: {a: "9", b: 1Gi, c: "5", d: 4, e: "80", f: 100m}`},
			fail: []string{`spec: {a: 1, b: 512Mi, c: 3, d: 9, e: 80, f: 100m}`, `spec: {a: 2, b: 2Gi, c: 3, d: 9, e: 80, f: 100m}`,
				`spec: {a: 2, b: 1Mi, c: 6, d: 9, e: 80, f: 100m}`, `spec: {a: 2, b: 1Mi, c: 3, d: 6, e: 80, f: 100m}`, `spec: {a: 2, b: 1Mi, c: 3, d: 9, e: 81, f: 100m}`,
				`spec: {a: two, b: 1Mi, c: 3, d: 9, e: 80, f: 100m}`},
		},
		"durations": {
			pattern: `spec: {a: ">10s"}`,
			pass:    []string{`spec: {a: 1m}`, `spec: {a: 11s}`},
			fail:    []string{`spec: {a: 10s}`, `spec: {a: soon}`, `spec: {a: 5}`},
		},
		"texts": {
			pattern: `spec: {a: "x* | y?", b: "*", c: null, d: "!no", e: "qu\"o\\te", f: "true"}`,
			pass:    []string{`spec: {a: xyz, b: 0, c: null, d: "yes", e: 'qu"o\te', f: true}`, `spec: {a: yz, b: {}, d: "a", e: 'qu"o\te', f: "true"}`},
			fail: []string{`spec: {a: z, b: 0, d: "yes", e: 'qu"o\te', f: true}`, `spec: {a: x, d: "yes", e: 'qu"o\te', f: true}`, `spec: {a: x, b: 0, c: 1, d: "yes", e: 'qu"o\te', f: true}`,
				`spec: {a: x, b: 0, d: "no", e: 'qu"o\te', f: true}`, `spec: {a: x, b: 0, d: "yes", e: 'quote', f: true}`},
		},
		"keys": {
			pattern: `metadata: {labels: {app.kubernetes.io/name: "?*", in: x, namespace: z}}`,
			want: `object.?metadata.?labels[?"app.kubernetes.io/name"].hasValue() && !(object.?metadata.?labels[?"app.kubernetes.io/name"] == optional.of("")) && ` +
				`object.?metadata.?labels[?"in"] == optional.of("x") && object.?metadata.?labels[?"namespace"] == optional.of("z")`,
			pass: []string{`metadata: {labels: {app.kubernetes.io/name: a, in: x, namespace: z}}`},
			fail: []string{`metadata: {labels: {in: x, namespace: z}}`, `metadata: {}`, `{}`},
		},
		"an empty map": {pattern: `spec: {x: {}}`, pass: []string{`spec: {x: {}}`, `spec: {x: {y: 1}}`}, fail: []string{`spec: {}`, `spec: {x: 1}`}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pattern := decodeYAML(t, c.pattern)
			for _, text := range c.pass {
				ok, expression, err := evaluatePattern(env, pattern, plainYAML(t, text))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(ok).To(BeTrue(), "%s\n%s", text, expression)
				if c.want != "" {
					g.Expect(expression).To(Equal(c.want))
				}
			}
			for _, text := range c.fail {
				ok, expression, err := evaluatePattern(env, pattern, plainYAML(t, text))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(ok).To(BeFalse(), "%s\n%s", text, expression)
			}
		})
	}
}

func TestPatternsThatAreRefused(t *testing.T) {
	for pattern, want := range map[string]string{
		`spec: {+(a): 1}`:       "spec.+(a): +() is for what changes objects",
		`spec: {a: "{{ x }}"}`:  "spec.a: {{ x }}: variables and references are not known: write cel",
		`spec: {a: "$(b)"}`:     "spec.a: $(b): variables and references",
		`spec: {a: ">abc"}`:     "spec.a: >abc: is compared with a number, a quantity or a duration",
		`spec: {a: [1, 2]}`:     "spec.a: a list has one pattern",
		`spec: {a: []}`:         "spec.a: a list has one pattern",
		`spec: {"a*": 1}`:       "spec.a*: a key has no wildcards here",
		`spec: {^(a): {b: 1}}`:  "spec.^(a): ^() is for a list of maps",
		`spec: {a: [[{b: 1}]]}`: "spec.a: lists of lists are not known",
	} {
		_, err := patternCEL(decodeYAML(t, pattern), "object")
		NewWithT(t).Expect(err).To(MatchError(HavePrefix(want)), pattern)
	}
	deep := any("x")
	for range 40 {
		deep = map[string]any{"a": deep}
	}
	_, err := patternCEL(deep, "object")
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("too large")))
}

func TestPodPatterns(t *testing.T) {
	for pattern, want := range map[string]string{
		`spec: {containers: [{name: x}]}`:                                    `spec: {containers: [{name: x}]}`,
		`spec: {template: {spec: {hostNetwork: false}}}`:                     `spec: {hostNetwork: false}`,
		`{kind: Deployment, spec: {template: {metadata: {labels: {a: b}}}}}`: `metadata: {labels: {a: b}}`,
		`spec: {jobTemplate: {spec: {template: {spec: {a: 1}}}}}`:            `spec: {a: 1}`,
		`=(spec): {=(template): {spec: {a: 1}}}`:                             `spec: {a: 1}`,
		`metadata: {labels: {a: b}}`:                                         `metadata: {labels: {a: b}}`,
		`spec: {replicas: ">1", template: {spec: {a: 1}}}`:                   "",
		`{metadata: {labels: {a: b}}, spec: {template: {spec: {a: 1}}}}`:     "",
	} {
		pod, ok := podPattern(decodeYAML(t, pattern).(map[string]any))
		NewWithT(t).Expect(ok).To(Equal(want != ""), pattern)
		if ok {
			NewWithT(t).Expect(pod).To(Equal(decodeYAML(t, want)), pattern)
		}
	}
}

// FuzzPattern: whatever JSON a pattern is, it is refused or becomes an expression that compiles, and that is true or false
// of an object that has what the pattern has.
func FuzzPattern(f *testing.F) {
	for _, seed := range []string{`{"spec":{"a":"<=1Gi"}}`, `{"a":[{"(b)":"x*","c":null}]}`, `{"=(a)":{"X(b)":1,"^(c)":[{"d":true}]}}`, `{"a":"1-5|!x&10s"}`, `{"<(a.b/c)":"?*"}`} {
		f.Add(seed, `{"a":[{"b":"xy"}],"spec":{"a":"1Mi"}}`)
	}
	env := kubernetesCEL(f)
	f.Fuzz(func(t *testing.T, patternText, objectText string) {
		d := json.NewDecoder(bytes.NewReader([]byte(patternText)))
		d.UseNumber()
		var pattern, object map[string]any
		if d.Decode(&pattern) != nil || json.Unmarshal([]byte(objectText), &object) != nil {
			return
		}
		expression, err := patternCEL(pattern, "object")
		if err != nil {
			return
		}
		if _, issues := env.Compile(expression); issues.Err() != nil {
			t.Fatalf("%s becomes %s: %v", patternText, expression, issues.Err())
		}
		_, _, _ = evaluatePattern(env, pattern, object)
	})
}
