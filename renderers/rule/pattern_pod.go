package rule

import (
	"maps"
	"reflect"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// podPattern returns the pattern for a Pod of one that is for Pods, or for what creates them: what it says of spec.template,
// or of spec.jobTemplate.spec.template. The template is always there, so =() around it says nothing; another anchor would
// make a condition of it. It is false if there is one, or if the pattern says something that a Pod does not have.
func podPattern(pattern map[string]any) (pod map[string]any, ok bool) {
	pod = maps.Clone(pattern)
	for _, key := range []string{"apiVersion", "kind"} { // which say what the rule is for, and a template does not have
		if _, isText := pod[key].(string); isText {
			delete(pod, key)
		}
		if len(fieldsOf(pod, key)) > 0 {
			return nil, false
		}
	}
	for _, spec := range fieldsOf(pod, "spec") {
		fields, _ := spec.pattern.(map[string]any)
		for raw := range fields {
			switch key := newPatternField(raw, nil, "").key; {
			case key == "template":
				return within(pod, "spec", "template")
			case key == "jobTemplate":
				return within(pod, "spec", "jobTemplate", "spec", "template")
			case ofCreators()[key]:
				return nil, false
			}
		}
	}
	return pod, true
}

// within returns the pattern at some keys, beside which there is nothing.
func within(pattern map[string]any, keys ...string) (map[string]any, bool) {
	for _, key := range keys {
		fields := fieldsOf(pattern, key)
		if len(fields) != 1 || len(pattern) != 1 || fields[0].anchor != "" && fields[0].anchor != "=" {
			return nil, false
		}
		var ok bool
		if pattern, ok = fields[0].pattern.(map[string]any); !ok {
			return nil, false
		}
	}
	return pattern, true
}

// fieldsOf returns what a pattern says of a key, with an anchor or without.
func fieldsOf(pattern map[string]any, key string) (out []patternField) {
	for raw, sub := range pattern {
		if f := newPatternField(raw, sub, ""); f.key == key {
			out = append(out, f)
		}
	}
	return out
}

// ofCreators are the fields of the specs of what creates Pods, which those of Pods do not have.
var ofCreators = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	add := func(spec any, is bool) {
		for f := range reflect.TypeOf(spec).Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				out[name] = is
			}
		}
	}
	for _, spec := range []any{appsv1.DaemonSetSpec{}, appsv1.DeploymentSpec{}, appsv1.ReplicaSetSpec{}, appsv1.StatefulSetSpec{},
		batchv1.CronJobSpec{}, batchv1.JobSpec{}, corev1.ReplicationControllerSpec{}} {
		add(spec, true)
	}
	add(corev1.PodSpec{}, false)
	return out
})
