package baseline

import (
	"cmp"
	"fmt"
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

	for i, p := range spec.KernelParams {
		if strings.ContainsAny(p.Value, "\n\r") {
			c.fail("spec.kernelParams[%d].value: has to be one line", i)
		}
		settings["parameters"] += p.Key + " " + p.Value + "\n"
		// These are seen, and set, in the network namespace of who looks.
		pod.HostNetwork = pod.HostNetwork || strings.HasPrefix(p.Key, "net.") || strings.HasPrefix(p.Key, "net/")
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

	for _, path := range []string{"namespace", "serviceaccount"} {
		o := map[string]any{}
		readTemplate("node/"+path+".yaml", &o)
		c.take(&unstructured.Unstructured{Object: o}, "spec.kernelParams or spec.containerRuntime")
	}
	configMap := &corev1.ConfigMap{TypeMeta: typeMeta("v1", "ConfigMap"), ObjectMeta: named(daemonSet.Name, clusterv1.NamespaceName(daemonSet.Namespace)), Data: settings}
	c.add(configMap, "spec.kernelParams or spec.containerRuntime")
	c.add(daemonSet, "spec.kernelParams or spec.containerRuntime")
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
	}
	return text
}
