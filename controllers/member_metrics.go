package controllers

import (
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var clusterHealth = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kurator_cluster_health_status",
	Help: "Whether a cluster has the condition (1) or not (0). A cluster that was not looked at yet has no value.",
}, []string{"cluster", "namespace", "kind", "condition"})

func init() { metrics.Registry.MustRegister(clusterHealth) }

func recordMemberHealth(kind string, key types.NamespacedName, ready bool) {
	value := 0.0
	if ready {
		value = 1
	}
	clusterHealth.WithLabelValues(key.Name, key.Namespace, kind, meta.ReadyCondition).Set(value)
}

func forgetMemberHealth(kind string, key types.NamespacedName) {
	clusterHealth.DeleteLabelValues(key.Name, key.Namespace, kind, meta.ReadyCondition)
}
