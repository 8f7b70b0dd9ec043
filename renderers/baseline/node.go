package baseline

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1 "github.com/fleetwright/fleetwright/api/cluster/v1alpha1"
	templates "github.com/fleetwright/fleetwright/fleet-templates"
)

// DefaultNodeImage is the image of the DaemonSet that sets what nodes are to have.
const DefaultNodeImage = "docker.io/library/busybox:1.37.0"

// nodes adds the DaemonSet that sets kernel parameters and mirrors, if there are any.
func (c *collector) nodes(spec *clusterv1.ClusterConfigSpec) {
	runtime := spec.ContainerRuntime
	if len(spec.KernelParams) == 0 && runtime == nil {
		return
	}
	settings := map[string]string{"node.sh": script()}
	daemonSet := &appsv1.DaemonSet{}
	readTemplate("node/daemonset.yaml", daemonSet)
	pod := &daemonSet.Spec.Template.Spec
	pod.Containers[0].Image = cmp.Or(spec.NodeImage, DefaultNodeImage)

	first := map[string]int{}
	for i, p := range spec.KernelParams {
		if strings.ContainsAny(p.Value, "\n\r") {
			c.fail("spec.kernelParams[%d].value: has to be one line", i)
		}
		key := dotted(p.Key)
		if j, ok := first[key]; ok {
			c.fail("spec.kernelParams[%d].key: %s is spec.kernelParams[%d], too", i, p.Key, j)
		}
		first[key] = i
		settings["parameters"] += p.Key + " " + p.Value + "\n"
		allow(pod, key)
	}
	if len(spec.KernelParams) > 0 {
		mount(pod, "sys", "/proc/sys", corev1.HostPathDirectory)
	}
	if runtime != nil {
		settings["runtime"] = runtime.Type
		config := runtime.Config
		if config == nil {
			config = &clusterv1.ContainerRuntimeConfig{}
		}
		if config.MaxContainerCount != nil {
			c.notInEffect = append(c.notInEffect, "spec.containerRuntime.config.maxContainerCount (it is the kubelet's maxPods, which only a provisioned cluster can get)")
		}
		for i, m := range config.RegistryMirrors {
			settings[fmt.Sprintf("mirror-%d", i)] = hosts(m)
		}
		// What was written before is removed when it is not wanted any more, so it is always writable.
		mount(pod, "containerd", "/etc/containerd", corev1.HostPathDirectoryOrCreate)
	}

	// A change starts the Pods anew, one after the other, so that Flux waits until the nodes have it, or says that one has not.
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(sum, "%q %q\n", name, settings[name])
	}
	put(&daemonSet.Spec.Template.Annotations, "cluster.kurator.dev/settings", hex.EncodeToString(sum.Sum(nil)[:16]))

	for _, path := range []string{"namespace", "serviceaccount"} {
		o := map[string]any{}
		readTemplate("node/"+path+".yaml", &o)
		c.take(&unstructured.Unstructured{Object: o}, "spec.kernelParams or spec.containerRuntime")
	}
	configMap := &corev1.ConfigMap{TypeMeta: typeMeta("v1", "ConfigMap"), ObjectMeta: named(daemonSet.Name, clusterv1.NamespaceName(daemonSet.Namespace)), Data: settings}
	c.add(configMap, "spec.kernelParams or spec.containerRuntime")
	c.add(daemonSet, "spec.kernelParams or spec.containerRuntime")
}

// dotted returns the one way to write the key of a parameter in which dots separate, as in sysctl.d(5): a key whose first
// separator is a slash is a path, and has dots where the other way has slashes.
func dotted(key string) string {
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '/' {
		return strings.NewReplacer("/", ".", ".", "/").Replace(key)
	}
	return key
}

// allow gives a Pod what it needs to set a parameter.
func allow(pod *corev1.PodSpec, key string) {
	var needs []struct {
		Parameters   []string            `json:"parameters"`
		Capabilities []corev1.Capability `json:"capabilities"`
		HostNetwork  bool                `json:"hostNetwork"`
		HostIPC      bool                `json:"hostIPC"`
		HostPID      bool                `json:"hostPID"`
	}
	readTemplate("node/needs.yaml", &needs)
	capabilities := pod.Containers[0].SecurityContext.Capabilities
	for _, n := range needs {
		if !slices.ContainsFunc(n.Parameters, func(p string) bool { return strings.HasPrefix(key, p) }) {
			continue
		}
		pod.HostNetwork, pod.HostIPC, pod.HostPID = pod.HostNetwork || n.HostNetwork, pod.HostIPC || n.HostIPC, pod.HostPID || n.HostPID
		capabilities.Add = append(capabilities.Add, n.Capabilities...)
		slices.Sort(capabilities.Add)
		capabilities.Add = slices.Compact(capabilities.Add)
	}
}

func script() string {
	b, err := templates.FS.ReadFile("node/node.sh")
	if err != nil {
		panic(err) // it is part of the program
	}
	return string(b)
}

// mount gives a Pod a folder of the host, below /host.
func mount(pod *corev1.PodSpec, name, path string, kind corev1.HostPathType) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}})
	container := &pod.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/host" + path})
}

// hosts returns the settings file of a mirror: the registry, and the hosts.toml that containerd reads.
// https://github.com/containerd/containerd/blob/main/docs/hosts.md
func hosts(m clusterv1.RegistryMirror) string {
	server := m.Registry
	if server == "docker.io" {
		server = "registry-1.docker.io"
	}
	text := m.Registry + "\nserver = \"https://" + server + "\"\n"
	for _, endpoint := range m.Endpoints {
		text += "\n[host.\"" + endpoint + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
		if strings.Contains(endpoint+"/", "/v2/") { // the whole path of the API, which containerd would add /v2 to
			text += "  override_path = true\n"
		}
	}
	return text
}
