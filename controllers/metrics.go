package controllers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// syncLatency is for how long each Application has not been ready; zero for those that are.
var syncLatency = &latencyCollector{
	desc: prometheus.NewDesc("kurator_sync_latency_seconds",
		"For how long an Application has not been as declared on all members; 0 if it is.", []string{"namespace", "name"}, nil),
	since: map[types.NamespacedName]time.Time{},
}

func init() { metrics.Registry.MustRegister(syncLatency) }

type latencyCollector struct {
	desc  *prometheus.Desc
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time // zero while ready
}

func (c *latencyCollector) observe(key types.NamespacedName, ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch since := c.since[key]; {
	case ready:
		c.since[key] = time.Time{}
	case since.IsZero():
		c.since[key] = time.Now()
	}
}

func (c *latencyCollector) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, key)
}

// Describe implements prometheus.Collector.
func (c *latencyCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector. The time goes on without a reconcile, so it is taken here.
func (c *latencyCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, since := range c.since {
		seconds := 0.0
		if !since.IsZero() {
			seconds = time.Since(since).Seconds()
		}
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, seconds, key.Namespace, key.Name)
	}
}
