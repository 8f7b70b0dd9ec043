package rule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// kubernetesCEL is the environment of the API server, of the oldest Kubernetes that members may have: Kyverno's has the same,
// and more.
func kubernetesCEL(t testing.TB) *cel.Env {
	t.Helper()
	g := NewWithT(t)
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, 33)).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("object", cel.DynType)}})
	g.Expect(err).NotTo(HaveOccurred())
	env, err := set.Env(environment.NewExpressions)
	g.Expect(err).NotTo(HaveOccurred())
	return env
}

// decodeYAML reads a pattern, as rules are read.
func decodeYAML(t testing.TB, text string) (v any) {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	NewWithT(t).Expect(d.Decode(&v)).To(Succeed())
	return v
}

// plainYAML reads an object, as the API server has it: with whole numbers.
func plainYAML(t testing.TB, text string) any {
	t.Helper()
	return whole(decodeYAML(t, text))
}

func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = whole(v[key])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return v
}

// program compiles an expression, which may cost what the API server allows.
func program(env *cel.Env, expression string) (cel.Program, error) {
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%s: %w", expression, issues.Err())
	}
	return env.Program(ast, cel.CostLimit(celconfig.PerCallLimit))
}

func evaluate(p cel.Program, object any) (bool, error) {
	out, _, err := p.Eval(map[string]any{"object": object})
	if err != nil {
		return false, err
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%v is neither true nor false", out)
	}
	return holds, nil
}

// TestPatterns holds that patterns mean what they mean to Kyverno. What passes and fails was compared with its own code.
func TestPatterns(t *testing.T) {
	env := kubernetesCEL(t)
	for name, c := range map[string]struct {
		pattern    string
		pass, fail []string
	}{
		"fields": {
			`spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}}`,
			[]string{`spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}, x: 1}}`},
			[]string{`{}`, `spec: {}`, `spec: {securityContext: {runAsNonRoot: "true", seccompProfile: {type: RuntimeDefault}}}`,
				`spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: Unconfined}}}`, `spec: {securityContext: null}`,
				`spec: [{securityContext: {}}]`, `spec: {securityContext: [x]}`, `spec: x`, `spec: 1`, `null`},
		},
		"an empty map": {`spec: {x: {}}`, []string{`spec: {x: {}}`, `spec: {x: {y: 1}}`}, []string{`spec: {}`, `spec: {x: 1}`, `spec: {x: []}`, `spec: {x: null}`}},
		"every item": {
			`spec: {containers: [{image: "!*:latest", resources: {limits: {memory: "?*"}}}]}`,
			[]string{`spec: {containers: [{image: "a:1", resources: {limits: {memory: 1Gi}}}]}`, `spec: {containers: []}`, `spec: {containers: [{image: "a:1", resources: {limits: {memory: 1000}}}]}`},
			[]string{`spec: {containers: [{image: "a:1", resources: {limits: {memory: 1Gi}}}, {image: "a:latest", resources: {limits: {memory: 1Gi}}}]}`,
				`spec: {containers: [{image: "a:1"}]}`, `spec: {}`, `spec: {containers: [{image: "a:1", resources: {limits: {memory: ""}}}]}`,
				`spec: {containers: [{image: "a:1", resources: {limits: {memory: {}}}}]}`, `spec: {containers: [x]}`, `spec: {containers: {a: {image: "a:1"}}}`, `spec: {containers: [[]]}`},
		},
		"every scalar of a list": {
			`spec: {add: [CHOWN | KILL], drop: ALL, x: ["?*"]}`,
			[]string{`spec: {add: [CHOWN, KILL], drop: [ALL], x: [1, a]}`, `spec: {add: [], drop: ALL, x: []}`, `spec: {add: [], drop: [], x: []}`},
			[]string{`spec: {add: [CHOWN, SYS_ADMIN], drop: [ALL], x: []}`, `spec: {add: CHOWN, drop: [ALL], x: []}`, `spec: {add: [], drop: [ALL, CHOWN], x: []}`,
				`spec: {add: [], x: []}`, `spec: {add: [], drop: [ALL], x: [{}]}`, `spec: {add: [], drop: [ALL], x: [null]}`, `spec: {add: [], drop: [ALL], x: [""]}`},
		},
		"equality": {
			`spec: {=(hostNetwork): false, containers: [{=(securityContext): {=(privileged): "false"}}]}`,
			[]string{`spec: {containers: [{}]}`, `spec: {hostNetwork: false, containers: [{securityContext: {privileged: false}}]}`, `spec: {containers: [{securityContext: {privileged: "false"}}]}`},
			[]string{`spec: {hostNetwork: true, containers: []}`, `spec: {containers: [{}, {securityContext: {privileged: true}}]}`, `spec: {containers: [{securityContext: null}]}`,
				`spec: {containers: [{securityContext: []}]}`, `spec: {containers: [{securityContext: {privileged: null}}]}`, `{}`},
		},
		"equality of what is required within": {
			`=(spec): {=(securityContext): {type: x}}`,
			[]string{`{}`, `spec: {}`, `spec: {securityContext: {type: x}}`},
			[]string{`spec: null`, `spec: {securityContext: {}}`, `spec: {securityContext: []}`},
		},
		"a map that has to be there": {
			`spec: {securityContext: {=(privileged): false}}`,
			[]string{`spec: {securityContext: {}}`, `spec: {securityContext: {privileged: false}}`},
			[]string{`spec: {}`, `{}`, `spec: {securityContext: {privileged: true}}`, `spec: {securityContext: x}`},
		},
		"negation": {
			`spec: {=(volumes): [{X(hostPath): "null"}]}`,
			[]string{`spec: {}`, `spec: {volumes: [{emptyDir: {}}]}`},
			[]string{`spec: {volumes: [{emptyDir: {}}, {hostPath: {path: /}}]}`, `spec: {volumes: [{hostPath: null}]}`, `spec: {volumes: x}`, `{}`},
		},
		"existence": {
			`spec: {^(containers): [{name: app}, {image: "b:*"}]}`,
			[]string{`spec: {containers: [{name: other, image: "b:1"}, {name: app}]}`, `spec: {}`},
			[]string{`spec: {containers: [{name: other}]}`, `spec: {containers: [{name: app}]}`, `spec: {containers: []}`, `spec: {containers: null}`, `spec: {containers: app}`},
		},
		"existence of what is not left out": {
			`spec: {^(containers): [{(name): app, image: "b:*"}]}`,
			[]string{`spec: {containers: [{name: other}, {name: app, image: "b:1"}]}`},
			[]string{`spec: {containers: [{name: other}]}`, `spec: {containers: [{name: app, image: c}]}`},
		},
		"a condition leaves out items": {
			`spec: {containers: [{(image): "*:latest", imagePullPolicy: Always}]}`,
			[]string{`spec: {containers: [{image: "a:1"}]}`, `spec: {containers: [{image: "a:1"}, {image: "a:latest", imagePullPolicy: Always}]}`, `spec: {containers: [{}]}`},
			[]string{`spec: {containers: [{image: "a:1"}, {image: "a:latest"}]}`, `spec: {containers: [x]}`, `spec: {}`},
		},
		"a condition of which all items are left out, leaves out the rest": {
			`spec: {containers: [{(image): "*:latest", imagePullPolicy: Always}], replicas: 2}`,
			[]string{`spec: {containers: [{image: "a:1"}], replicas: 1}`, `spec: {containers: [{image: "a:1"}, {image: "a:latest", imagePullPolicy: Always}], replicas: 2}`, `spec: {containers: [], replicas: 2}`},
			[]string{`spec: {containers: [{image: "a:1"}, {image: "a:latest", imagePullPolicy: Always}], replicas: 1}`, `spec: {containers: [], replicas: 1}`, `spec: {containers: [{image: "a:latest"}], replicas: 2}`},
		},
		"a condition leaves out objects": {
			`{metadata: {labels: {(tier): backend}}, spec: {replicas: ">=2"}}`,
			[]string{`{metadata: {labels: {}}, spec: {replicas: 1}}`, `{metadata: {labels: {tier: front}}}`, `{metadata: {labels: {tier: backend}}, spec: {replicas: 2}}`},
			[]string{`{metadata: {labels: {tier: backend}}, spec: {replicas: 1}}`, `spec: {replicas: 2}`},
		},
		"all conditions have to hold": {
			`spec: {(a): 1, (b): {c: 2}, d: 3}`,
			[]string{`spec: {a: 1, b: {c: 2}, d: 3}`, `spec: {a: 2, b: {c: 2}}`, `spec: {a: 1, b: {}}`, `spec: {a: 1, b: x}`, `spec: {}`},
			[]string{`spec: {a: 1, b: {c: 2}}`, `{}`},
		},
		"a condition of null is not one of what is absent": {`{(a): null, b: 1}`, []string{`{}`, `{a: null, b: 1}`, `{a: 1}`}, []string{`{a: null}`, `{a: ""}`}},
		"what all equalities skip is skipped": {
			`{=(a): [{(b): 1, c: 2}], d: 3}`,
			[]string{`{a: [{b: 2}]}`, `{a: [{b: 1, c: 2}], d: 3}`, `d: 3`},
			[]string{`{a: [{b: 1, c: 2}]}`, `{a: [{b: 1}], d: 3}`, `{}`, `a: []`},
		},
		"what one of them skips is not": {
			`{=(a): [{(b): 1, c: 2}], =(e): 1, d: 3}`,
			[]string{`{a: [{b: 2}], d: 3}`, `{a: [{b: 2}], e: 1, d: 3}`},
			[]string{`{a: [{b: 2}]}`, `{a: [{b: 2}], e: 2, d: 3}`},
		},
		"a global condition": {
			`spec: {<(hostNetwork): true, containers: [{ports: [{hostPort: "!22"}]}]}`,
			[]string{`spec: {hostNetwork: false, containers: [{ports: [{hostPort: 22}]}]}`, `spec: {hostNetwork: true, containers: [{ports: [{hostPort: 80}]}]}`, `spec: {containers: [{ports: [{}]}]}`},
			[]string{`spec: {hostNetwork: true, containers: [{ports: [{hostPort: 22}]}]}`, `spec: {containers: [{ports: [{hostPort: "22"}]}]}`, `spec: {containers: [{ports: [{hostPort: {}}]}]}`},
		},
		"a global condition within an item": {
			`spec: {containers: [{<(image): "*:latest", x: 1}], secrets: [{name: y}]}`,
			[]string{`spec: {containers: [{image: "a:1"}]}`, `spec: {containers: [{image: "a:latest", x: 1}], secrets: [{name: y}]}`},
			[]string{`spec: {containers: [{image: "a:latest", x: 1}], secrets: [{name: z}]}`},
		},
		"numbers": {
			`spec: {a: 80, b: "80", c: 1.5, d: "!80", e: "0", f: "!0"}`,
			[]string{`spec: {a: 80, b: 80, c: 1.5, d: 81, f: 1}`, `spec: {a: "80", b: "80", c: "1.5", e: 0, f: "1"}`, `spec: {a: 80.0, b: 80.0, c: 1.5, d: x, e: null, f: true}`},
			[]string{`spec: {b: 80, c: 1.5, f: 1}`, `spec: {a: 80, b: 80, c: 1.5, d: "80", f: 1}`, `spec: {a: 80, b: 80, c: 1.5, e: 1, f: 1}`, `spec: {a: 80, b: 80, c: 1.5}`, `spec: {a: 80, b: 80, c: 1.5, f: 0}`, `spec: {a: 80, b: true, c: 1.5, f: 1}`},
		},
		"quantities": {
			`spec: {a: ">=2 & <10", b: "<=1Gi", c: "1-5", d: "5!-8", f: "100m", g: "!1Gi"}`,
			[]string{`spec: {a: 2, b: 512Mi, c: 3, d: 9, f: "0.1", g: 1Mi}`, `spec: {a: "9", b: 1073741824, c: "5", d: 4, f: 100m}`, `spec: {a: 2.5, c: 1, f: 100m, g: x}`},
			[]string{`spec: {a: 1, b: 512Mi, c: 3, d: 9, f: 100m}`, `spec: {a: 2, b: 2Gi, c: 3, d: 9, f: 100m}`, `spec: {a: 2, b: 1Mi, c: 6, d: 9, f: 100m}`,
				`spec: {a: 2, b: 1Mi, c: 3, d: 6, f: 100m}`, `spec: {a: 2, b: 1Mi, c: 3, d: 9, f: 101m}`, `spec: {a: two, b: 1Mi, c: 3, d: 9, f: 100m}`,
				`spec: {a: 2, b: {}, c: 3, d: 9, f: 100m}`, `spec: {a: 2, b: [1], c: 3, d: 9, f: 100m}`, `spec: {a: 2, c: 3, f: 100m, g: 1024Mi}`, `spec: {a: true, c: 3, f: 100m}`},
		},
		"durations": {
			`spec: {a: ">10s", b: "1m-1h", c: "!30s", cpu: "<=500m"}`,
			[]string{`spec: {a: 1m, b: 30m}`, `spec: {a: 11s, b: 1h0m0s, c: x, cpu: 250m}`, `spec: {a: 604800s, b: 60s, c: 31s, cpu: 0.5}`},
			[]string{`spec: {a: 10s, b: 1m}`, `spec: {a: soon, b: 1m}`, `spec: {a: 5, b: 1m}`, `spec: {a: 99999999999h, b: 1m}`, `spec: {a: 11s, b: 2h}`, `spec: {a: 11s}`,
				`spec: {a: 11s, b: 1m, c: 0m30s}`, `spec: {a: 11s, b: 1m, cpu: 1}`, `spec: {a: 11s, b: 1m, cpu: 1h}`, `spec: {b: 1m}`},
		},
		"texts": {
			`spec: {a: "x* | y? | z", b: "*", c: null, d: "!no", e: "qu\"o\\te\n\u2028", f: "true", g: ""}`,
			[]string{`spec: {a: xyz, b: 0, c: null, d: "yes", e: "qu\"o\\te\n\u2028", f: true, g: ""}`, `spec: {a: yz, b: {}, d: "a", e: "qu\"o\\te\n\u2028", f: "true", g: ""}`, `spec: {a: z, b: [], c: false, d: 7, e: "qu\"o\\te\n\u2028", f: true, g: ""}`},
			[]string{`spec: {a: y, b: 0, d: "yes", e: "qu\"o\\te\n\u2028", f: true, g: ""}`, `spec: {a: x, d: "yes", e: "qu\"o\\te\n\u2028", f: true, g: ""}`, `spec: {a: x, b: 0, c: 1, d: "yes", e: "qu\"o\\te\n\u2028", f: true, g: ""}`,
				`spec: {a: x, b: 0, d: "no", e: "qu\"o\\te\n\u2028", f: true, g: ""}`, `spec: {a: x, b: 0, d: "yes", e: "quote", f: true, g: ""}`, `spec: {a: x, b: 0, e: "qu\"o\\te\n\u2028", f: true, g: ""}`,
				`spec: {a: x, b: 0, d: {}, e: "qu\"o\\te\n\u2028", f: true, g: ""}`, `spec: {a: x, b: 0, d: "yes", e: "qu\"o\\te\n\u2028", f: true}`, `spec: {a: {}, b: 0, d: "yes", e: "qu\"o\\te\n\u2028", f: true, g: ""}`},
		},
		"wildcards": {
			`{a: "*b*", b: "a.b*c", c: "?", d: "!*:latest & !*:dev", e: "?*", f: "2?"}`,
			[]string{`{a: abc, b: a.bxxc, c: "ü", d: "x:1", e: false, f: 22}`, "{a: b, b: \"a.b\\nc\", c: 1, d: x, e: 0, f: \"2x\"}"},
			[]string{`{a: ac, b: a.bc, c: x, d: x, e: x, f: 22}`, `{a: b, b: aXbc, c: x, d: x, e: x, f: 22}`, `{a: b, b: a.bc, c: xx, d: x, e: x, f: 22}`, `{a: b, b: a.bc, c: x, d: "x:latest", e: x, f: 22}`,
				`{a: b, b: a.bc, c: x, d: "x:dev", e: x, f: 22}`, `{a: b, b: a.bc, c: x, e: x, f: 22}`, `{a: b, b: a.bc, c: x, d: x, e: {}, f: 22}`, `{a: b, b: a.bc, c: x, d: x, e: null, f: 22}`, `{a: b, b: a.bc, c: x, d: x, e: x, f: 2}`},
		},
		"nothing matches": {`=(a): "!*"`, []string{`{}`}, []string{`a: x`, `a: null`}},
		"keys": {
			`{metadata: {labels: {app.kubernetes.io/name: "?*", in: x, namespace: z, v: "1-2"}}, package: {"a\"b": {namespace: 1}}}`,
			[]string{`{metadata: {labels: {app.kubernetes.io/name: a, in: x, namespace: z, v: 1-2}}, package: {"a\"b": {namespace: 1}}}`},
			[]string{`{metadata: {labels: {in: x, namespace: z, v: "1"}}, package: {"a\"b": {namespace: 1}}}`, `{metadata: {labels: {app.kubernetes.io/name: a, in: x, namespace: z, v: "3"}}, package: {"a\"b": {namespace: 1}}}`,
				`{metadata: {labels: {app.kubernetes.io/name: a, in: x, namespace: z, v: "1"}}, package: {"a\"b": {namespace: 2}}}`, `metadata: {}`, `{}`},
		},
		"keys with wildcards": {
			`metadata: {annotations: {"corp.org/*": "?*", "X(a?)": x, "=(b*)": x, "0*": "!5"}}`,
			[]string{`metadata: {annotations: {corp.org/x: a}}`, `metadata: {annotations: {corp.org/x: a, a: x, bb: x, "00": "4"}}`},
			[]string{`metadata: {annotations: {}}`, `metadata: {annotations: {corp.org/x: ""}}`, `metadata: {annotations: {corp.org/x: a, ab: x}}`, `metadata: {annotations: {corp.org/x: a, bb: y}}`, `metadata: {annotations: {corp.org/x: a, "00": "5"}}`, `metadata: {annotations: [corp.org/x]}`},
		},
		"a condition on a key with wildcards": {
			`{metadata: {labels: {"(team*)": x}}, spec: {a: 1}}`,
			[]string{`metadata: {labels: {}}`, `metadata: {labels: {team-a: y}}`, `{metadata: {labels: {team-a: x}}, spec: {a: 1}}`},
			[]string{`metadata: {labels: {team-a: x}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			expression, err := patternCEL(decodeYAML(t, c.pattern), "object")
			g.Expect(err).NotTo(HaveOccurred())
			p, err := program(env, expression)
			g.Expect(err).NotTo(HaveOccurred())
			check := func(text string, want bool) {
				got, err := evaluate(p, plainYAML(t, text))
				g.Expect(err).NotTo(HaveOccurred(), "%s\n%s", text, expression)
				g.Expect(got).To(Equal(want), "%s\n%s", text, expression)
			}
			for _, text := range c.pass {
				check(text, true)
			}
			for _, text := range c.fail {
				check(text, false)
			}
		})
	}
}

// TestPatternGolden shows what the usual patterns become: those of Kyverno's policies for Pods, and others that are often
// written. GEN_GOLDEN=true rewrites it.
func TestPatternGolden(t *testing.T) {
	g := NewWithT(t)
	env := kubernetesCEL(t)
	file := filepath.Join("testdata", "pattern.golden")
	before, err := os.ReadFile(file)
	if !os.IsNotExist(err) {
		g.Expect(err).NotTo(HaveOccurred())
	}
	var out strings.Builder
	for _, c := range []struct{ name, pattern string }{
		{"run as non-root, with seccomp", `spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}}`},
		{"disallow-privileged-containers", `spec: {=(initContainers): [{=(securityContext): {=(privileged): "false"}}], containers: [{=(securityContext): {=(privileged): "false"}}]}`},
		{"disallow-host-namespaces", `spec: {=(hostPID): "false", =(hostIPC): "false", =(hostNetwork): "false"}`},
		{"disallow-host-path", `spec: {=(volumes): [{X(hostPath): "null"}]}`},
		{"disallow-host-ports", `spec: {containers: [{=(ports): [{=(hostPort): 0}]}]}`},
		{"disallow-capabilities", `spec: {containers: [{=(securityContext): {=(capabilities): {=(add): [AUDIT_WRITE | CHOWN | KILL]}}}]}`},
		{"require-run-as-nonroot, of the Pod", `spec: {securityContext: {runAsNonRoot: "true"}, containers: [{=(securityContext): {=(runAsNonRoot): "true"}}]}`},
		{"require-run-as-nonroot, of containers", `spec: {containers: [{securityContext: {runAsNonRoot: "true"}}]}`},
		{"require-run-as-non-root-user", `spec: {=(securityContext): {=(runAsUser): ">0"}}`},
		{"restrict-seccomp-strict", `spec: {securityContext: {seccompProfile: {type: RuntimeDefault | Localhost}}, containers: [{=(securityContext): {=(seccompProfile): {=(type): RuntimeDefault | Localhost}}}]}`},
		{"restrict-volume-types", `spec: {=(volumes): [{X(hostPath): "null", X(nfs): "null"}]}`},
		{"require-requests-limits", `spec: {containers: [{resources: {requests: {memory: "?*", cpu: "?*"}, limits: {memory: "?*"}}}]}`},
		{"disallow-latest-tag, a tag", `spec: {containers: [{image: "*:*"}]}`},
		{"disallow-latest-tag, not latest", `spec: {containers: [{image: "!*:latest"}]}`},
		{"restrict-image-registries", `spec: {containers: [{image: "registry.example.org/* | ghcr.io/corp/*"}]}`},
		{"imagepullpolicy-always", `spec: {containers: [{(image): "*:latest", imagePullPolicy: Always}]}`},
		{"require-labels", `metadata: {labels: {app.kubernetes.io/name: "?*"}}`},
		{"restrict-node-port", `spec: {=(type): "!NodePort"}`},
		{"replicas", `spec: {replicas: ">=2"}`},
		{"a quantity", `spec: {resources: {requests: {storage: "<=1Gi"}}}`},
		{"a range", `spec: {securityContext: {fsGroup: "1-65535"}}`},
		{"of a tier", `{metadata: {labels: {(tier): backend}}, spec: {replicas: ">=2"}}`},
		{"one of the containers", `spec: {^(containers): [{name: proxy, image: "proxy:*"}]}`},
		{"capabilities are dropped", `spec: {containers: [{securityContext: {capabilities: {drop: ALL}}}]}`},
	} {
		expression, err := patternCEL(decodeYAML(t, c.pattern), "object")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = program(env, expression)
		g.Expect(err).NotTo(HaveOccurred())
		fmt.Fprintf(&out, "# %s\n# %s\n%s\n\n", c.name, c.pattern, expression)
	}
	if os.Getenv("GEN_GOLDEN") == "true" {
		g.Expect(os.WriteFile(file, []byte(out.String()), 0o600)).To(Succeed())
		return
	}
	g.Expect(out.String()).To(Equal(string(before)))
}

func TestPatternsThatAreRefused(t *testing.T) {
	for pattern, want := range map[string]string{
		`spec: {+(a): 1}`:                               "spec.+(a): +() is for what changes objects, and says nothing here: leave it out",
		`spec: {a: "{{ x }}"}`:                          "spec.a: {{ x }}: variables and references are not known: write cel",
		`spec: {a: "$(b)"}`:                             "spec.a: $(b): variables and references",
		`spec: {"{{a}}": 1}`:                            "spec.{{a}}: variables and references",
		`spec: {a: ">abc"}`:                             `spec.a: > compares with "abc": write a number, a quantity or a duration`,
		`spec: {a: [1, 2]}`:                             "spec.a: a list has one pattern, which is for each of the items",
		`spec: {a: []}`:                                 "spec.a: a list has one pattern",
		`spec: {"a*": 1}`:                               "spec.a*: a key has * and ? only in metadata.labels and metadata.annotations",
		`metadata: {labels: {"<(a*)": x}}`:              "metadata.labels.<(a*): a key with * or ? has no <()",
		`metadata: {labels: {"a*": {b: c}}}`:            "metadata.labels.a*: what has * or ? in its key is a text",
		`spec: {^(a): {b: 1}}`:                          "spec.^(a): ^() is for a list of maps",
		`spec: {^(a): [x]}`:                             "spec.^(a): ^() is for a list of maps",
		`spec: {a: [[{b: 1}]]}`:                         "spec.a: lists of lists are not known",
		`spec: {containers: [{=(a): [{(b): "$(c)"}]}]}`: "spec.containers[0].=(a)[0].(b): $(c): variables",
	} {
		_, err := patternCEL(decodeYAML(t, pattern), "object")
		NewWithT(t).Expect(err).To(MatchError(HavePrefix(want)), pattern)
	}
}

// TestPatternBounds holds that what a pattern becomes is bounded, and that CEL compiles what is within the bounds.
func TestPatternBounds(t *testing.T) {
	g := NewWithT(t)
	env := kubernetesCEL(t)
	nested := func(depth int, around func(any) any) (out any) {
		out = "x"
		for range depth {
			out = around(out)
		}
		return out
	}
	wide := map[string]any{}
	for i := range maxPatternNodes + 1 {
		wide[fmt.Sprint(i)] = "x"
	}
	long := map[string]any{"a": strings.Repeat("x", maxPatternText)}
	for _, pattern := range []any{wide, long, json.Number("1e999")} {
		_, err := patternCEL(pattern, "object")
		g.Expect(err).To(MatchError(ContainSubstring("too large")))
	}
	for _, around := range []func(any) any{
		func(v any) any { return map[string]any{"a": v} },
		func(v any) any { return map[string]any{"=(a)": v} },
		func(v any) any { return map[string]any{"(a)": v} },
		func(v any) any { return map[string]any{"=(a)": v, "b": "x"} },
		func(v any) any { return map[string]any{"a": []any{v}} },
		func(v any) any { return map[string]any{"a": []any{map[string]any{"b": v}}} },
		func(v any) any { return map[string]any{"^(a)": []any{map[string]any{"b": v}}} },
		func(v any) any { return map[string]any{"=(a)": []any{v}, "(b)": "x", "<(c)": "y"} }, // which doubles with each
	} {
		for _, depth := range []int{1, 5, 10, 15, 30, 1000} {
			expression, err := patternCEL(nested(depth, around), "object")
			if depth < 10 || err == nil {
				g.Expect(err).NotTo(HaveOccurred())
				_, err = program(env, expression)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if depth == 1000 {
				g.Expect(err).To(MatchError(ContainSubstring("too large")))
			}
		}
	}
}

func TestAnyPattern(t *testing.T) {
	g := NewWithT(t)
	env := kubernetesCEL(t)
	for pattern, c := range map[string]struct{ pass, fail []string }{
		`[{a: 1}, {b: 2}]`: {[]string{`a: 1`, `b: 2`}, []string{`{}`, `a: 2`}},
		// What is skipped does not make up for what fails.
		`[{(a): 1, c: 1}, {b: 2}]`:         {[]string{`{a: 1, c: 1}`, `b: 2`}, []string{`{}`, `a: 1`}},
		`[{(a): 1, c: 1}, {(b): 1, d: 1}]`: {[]string{`{}`, `{a: 1, c: 1}`, `{b: 1, d: 1}`}, []string{`a: 1`, `b: 1`}},
	} {
		expression, err := anyPatternCEL(decodeYAML(t, pattern).([]any), "object")
		g.Expect(err).NotTo(HaveOccurred())
		p, err := program(env, expression)
		g.Expect(err).NotTo(HaveOccurred())
		for want, texts := range map[bool][]string{true: c.pass, false: c.fail} {
			for _, text := range texts {
				got, err := evaluate(p, plainYAML(t, text))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(got).To(Equal(want), "%s of %s: %s", pattern, text, expression)
			}
		}
	}
	_, err := anyPatternCEL([]any{map[string]any{"a": "{{ b }}"}}, "object")
	g.Expect(err).To(MatchError(HavePrefix("[0].a: {{ b }}: variables")))
}

// TestMayBeList holds that no list of scalars that Kubernetes has is taken for a scalar.
func TestMayBeList(t *testing.T) {
	seen := map[reflect.Type]bool{}
	lists := 0
	var walk func(reflect.Type)
	walk = func(of reflect.Type) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || seen[of] || strings.HasSuffix(of.Name(), "Options") {
			return
		}
		seen[of] = true
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if k := f.Type.Kind(); k == reflect.Slice && name != "" {
				switch item := f.Type.Elem().Kind(); item {
				case reflect.String, reflect.Int32, reflect.Int64:
					lists++
					// Those that nobody writes are what the API server writes itself.
					ok := mayBeList(name) || of.Name() == "UncountedTerminatedPods" || strings.HasSuffix(of.Name(), "Status") || strings.HasSuffix(of.Name(), "AccessReviewSpec")
					NewWithT(t).Expect(ok).To(BeTrue(), "%s of %s", name, of)
				}
			}
			walk(f.Type)
		}
	}
	for _, of := range scheme.Scheme.AllKnownTypes() {
		walk(of)
	}
	NewWithT(t).Expect(lists).To(BeNumerically(">", 50))
	for _, name := range []string{"image", "type", "replicas", "terminationGracePeriodSeconds", "storageClass", "status", "app.kubernetes.io/aliases"} {
		NewWithT(t).Expect(mayBeList(name)).To(BeFalse(), name)
	}
}

func TestPodPatterns(t *testing.T) {
	for pattern, want := range map[string]string{
		`spec: {containers: [{name: x}]}`:                                    `spec: {containers: [{name: x}]}`,
		`{kind: Pod, apiVersion: v1, spec: {(nodeName): x, a: 1}}`:           `spec: {(nodeName): x, a: 1}`,
		`spec: {activeDeadlineSeconds: ">0"}`:                                `spec: {activeDeadlineSeconds: ">0"}`,
		`metadata: {labels: {a: b}}`:                                         `metadata: {labels: {a: b}}`,
		`(spec): {a: 1}`:                                                     `(spec): {a: 1}`,
		`spec: {template: {spec: {hostNetwork: false}}}`:                     `spec: {hostNetwork: false}`,
		`{kind: Deployment, spec: {template: {metadata: {labels: {a: b}}}}}`: `metadata: {labels: {a: b}}`,
		`spec: {jobTemplate: {spec: {template: {spec: {a: 1}}}}}`:            `spec: {a: 1}`,
		`=(spec): {=(template): {=(spec): {a: 1}}}`:                          `=(spec): {a: 1}`,
		`spec: {=(jobTemplate): {spec: {=(template): {spec: {a: 1}}}}}`:      `spec: {a: 1}`,
		`spec: {replicas: ">1", template: {spec: {a: 1}}}`:                   "",
		`spec: {replicas: ">1"}`:                                             "",
		`spec: {=(schedule): "* * * * *"}`:                                   "",
		`spec: {template: "?*"}`:                                             "",
		`spec: {X(template): x}`:                                             "",
		`spec: {(template): {spec: {a: 1}}}`:                                 "",
		`(spec): {template: {spec: {a: 1}}}`:                                 "",
		`spec: {template: {spec: {a: 1}}, =(template): {spec: {b: 1}}}`:      "",
		`spec: {template: {spec: {a: 1}}, jobTemplate: {spec: {}}}`:          "",
		`spec: {jobTemplate: {spec: {backoffLimit: 1, template: {}}}}`:       "",
		`spec: {jobTemplate: {spec: {backoffLimit: 1}}}`:                     "",
		`{metadata: {labels: {a: b}}, spec: {template: {spec: {a: 1}}}}`:     "",
		`{(kind): Deployment, spec: {template: {spec: {a: 1}}}}`:             "",
	} {
		original, pattern2 := decodeYAML(t, pattern), decodeYAML(t, pattern)
		pod, ok := podPattern(pattern2.(map[string]any))
		NewWithT(t).Expect(ok).To(Equal(want != ""), pattern)
		NewWithT(t).Expect(pattern2).To(Equal(original))
		if ok {
			NewWithT(t).Expect(pod).To(Equal(decodeYAML(t, want)), pattern)
		}
	}
}

// FuzzPattern holds that whatever JSON a pattern is, it is refused, or becomes an expression that is true or false of any
// object: of one that is much as the pattern, too, where it is not cut short.
func FuzzPattern(f *testing.F) {
	for _, seed := range []string{
		`{"spec":{"a":"<=1Gi"}}`, `{"a":[{"(b)":"x*","c":null}]}`, `{"=(a)":{"X(b)":1,"^(c)":[{"d":true}]}}`, `{"a":"1-5|!x&10s"}`, `{"<(a.b/c)":"?*"}`,
		`{"metadata":{"labels":{"a*":"x","=(b?)":"!5","(c*)":">1"},"=(annotations)":{"=(*)":"1-2"}}}`, `{"items":[["x"]],"verbs":"!*|get","=(in)":{"=(a-b)":{"=(c)":"1!-10m"}}}`,
		`{"a":["\u0000\"\\\ufffd"],"b":-0.0,"c":1e300,"d":12345678901234567890,"e":"-5-+5","f":"é*?"}`, `{"(a)":{"(b)":[{"<(c)":1,"d":["*"]}]},"=(e)":[{"<(f)":2}],"=(g)":{"<(h)":{}}}`,
	} {
		f.Add(seed, `{"a":[{"b":"xy"}],"spec":{"a":"1Mi"}}`)
	}
	env := kubernetesCEL(f)
	f.Fuzz(func(t *testing.T, patternText, objectText string) {
		d := json.NewDecoder(strings.NewReader(patternText))
		d.UseNumber()
		var pattern, object map[string]any
		if len(patternText)+len(objectText) > 4096 || d.Decode(&pattern) != nil || json.Unmarshal([]byte(objectText), &object) != nil {
			return
		}
		expression, err := patternCEL(pattern, "object")
		if err != nil {
			return
		}
		p, err := program(env, expression)
		if err != nil {
			t.Fatalf("%s: %v", patternText, err)
		}
		objects := []any{object}
		for _, odd := range []any{nil, "x", "1m", int64(1), 1.5, true, []any{}, []any{nil, "x", []any{}}, map[string]any{"a": []any{}}} {
			for depth := range 5 {
				objects = append(objects, like(pattern, odd, depth+1))
			}
		}
		for _, object := range objects {
			if _, err := evaluate(p, object); err != nil {
				t.Fatalf("%s of %v: %s: %v", patternText, object, expression, err)
			}
		}
	})
}

// like makes an object of a pattern, with something odd at some depth.
func like(pattern, odd any, depth int) any {
	if depth == 0 {
		return odd
	}
	switch pattern := pattern.(type) {
	case map[string]any:
		out := map[string]any{}
		for raw, sub := range pattern {
			out[newPatternField(raw, nil, "").key] = like(sub, odd, depth-1)
		}
		return out
	case []any:
		out := []any{}
		for _, sub := range pattern {
			out = append(out, like(sub, odd, depth), odd)
		}
		return out
	case json.Number:
		f, _ := pattern.Float64()
		return f
	}
	return pattern
}
