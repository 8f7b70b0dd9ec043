package controllers

import (
	"sync"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// clusterHealth says of each member whether it is ready. A gauge of the library would take ten times the memory of this
// map, which counts with thousands of members.
var clusterHealth = &healthCollector{
	desc: prometheus.NewDesc("kurator_cluster_health_status",
		"Whether a cluster has the condition (1) or not (0). A cluster that was not looked at yet has no value.",
		[]string{"cluster", "namespace", "kind", "condition"}, nil),
	ready: map[healthKey]bool{},
}

func init() { metrics.Registry.MustRegister(clusterHealth) }

type healthCollector struct {
	desc  *prometheus.Desc
	mu    sync.Mutex
	ready map[healthKey]bool
}

type healthKey struct {
	kind string
	types.NamespacedName
}

// Describe implements prometheus.Collector.
func (c *healthCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *healthCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, ready := range c.ready {
		value := 0.0
		if ready {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, value, key.Name, key.Namespace, key.kind, meta.ReadyCondition)
	}
}

func recordMemberHealth(kind string, key types.NamespacedName, ready bool) {
	clusterHealth.mu.Lock()
	defer clusterHealth.mu.Unlock()
	clusterHealth.ready[healthKey{kind, key}] = ready
}

func forgetMemberHealth(kind string, key types.NamespacedName) {
	clusterHealth.mu.Lock()
	defer clusterHealth.mu.Unlock()
	delete(clusterHealth.ready, healthKey{kind, key})
}
