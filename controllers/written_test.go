package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/fleetwright/fleetwright/api/fleet/v1alpha1"
)

func TestStatusWrittenLast(t *testing.T) {
	g := NewWithT(t)
	fleet := func(uid, version string) *fleetv1.Fleet {
		return &fleetv1.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "f", UID: types.UID(uid), ResourceVersion: version}}
	}
	var w written[*fleetv1.Fleet]
	nine := fleet("1", "9")
	g.Expect(w.latest(nine)).To(BeIdenticalTo(nine), "nothing was written")
	ten := fleet("1", "10")
	w.remember(ten)
	g.Expect(w.latest(nine)).To(BeIdenticalTo(ten), "the cache is behind")
	g.Expect(w.latest(nine)).To(BeIdenticalTo(ten), "still")
	again := fleet("1", "10")
	g.Expect(w.latest(again)).To(BeIdenticalTo(again), "the cache has it")
	g.Expect(w.latest(nine)).To(BeIdenticalTo(nine), "and it is forgotten")
	w.remember(ten)
	other := fleet("2", "8")
	g.Expect(w.latest(other)).To(BeIdenticalTo(other), "another object of the same name")
}
