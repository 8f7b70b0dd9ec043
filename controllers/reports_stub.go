package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

type Reports struct{}
type reportOwner struct {
	types.NamespacedName
	Kind string
}
type resultCounts struct{ pass, fail, warn, error, skip int }
type reportFinding struct{ policy, result, severity, resource, message string }
type memberReport struct {
	counts    map[string]resultCounts
	findings  []reportFinding
	readAt    time.Time
	problem   string
	truncated bool
}

func (r *Reports) want(reportOwner, []string, []memberRef)        {}
func (r *Reports) forget(reportOwner)                             {}
func (r *Reports) of(reportOwner, memberRef) (memberReport, bool) { return memberReport{}, false }
func (r *Reports) changes(kind string) source.Source {
	return source.Func(func(context.Context, queue) error { return nil })
}
