package controllers

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/go-logr/logr"
)

// testConfig reaches the API server that all tests share; each test has a namespace of its own.
var testConfig *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(m.Run()) // each of its processes would start one
	}
	env := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "config", "crd", "bases"), filepath.Join("..", "bin", "crds")},
		ErrorIfCRDPathMissing: true,
	}
	var err error
	if testConfig, err = env.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "starting the API server (make test-unit builds it): %v\n", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
