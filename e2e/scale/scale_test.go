package scale

import (
	"testing"

	"github.com/fleetwright/fleetwright/e2e/harness"
)

var env *harness.Env

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{WithoutFlux: true}, func(e *harness.Env) { env = e })
}
