package baseline

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// node is a folder that the script takes for a node.
type node struct {
	*WithT
	dir string
}

func newNode(t *testing.T, files map[string]string) *node {
	n := &node{NewWithT(t), t.TempDir()}
	n.Expect(os.Mkdir(filepath.Join(n.dir, "status"), 0o755)).To(Succeed())
	n.Expect(os.Mkdir(filepath.Join(n.dir, "settings"), 0o755)).To(Succeed())
	for name, text := range files {
		n.write(name, text)
	}
	return n
}

func (n *node) write(name, text string) {
	path := filepath.Join(n.dir, name)
	n.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	n.Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
}

func (n *node) read(name string) string {
	b, err := os.ReadFile(filepath.Join(n.dir, name))
	n.Expect(err).NotTo(HaveOccurred())
	return string(b)
}

// looks has the script look once, and returns what it says.
func (n *node) looks() string {
	cmd := exec.Command("/bin/sh", "../../fleet-templates/node/node.sh")
	cmd.Env = append(os.Environ(), "ONCE=1", "NODE_NAME=n1", "ROOT="+n.dir+"/host", "SETTINGS="+n.dir+"/settings", "STATUS="+n.dir+"/status", "MOUNTS="+n.dir+"/mounts")
	out, err := cmd.CombinedOutput()
	n.Expect(err).NotTo(HaveOccurred(), string(out))
	return string(out)
}

func TestNodeParameters(t *testing.T) {
	n := newNode(t, map[string]string{
		"host/proc/sys/vm/swappiness":                     "60\n",
		"host/proc/sys/net/ipv4/tcp_rmem":                 "4096\t87380\t6291456\n",
		"host/proc/sys/net/ipv4/conf/eth0.100/forwarding": "0\n",
		"host/proc/sys/kernel/core_pattern":               "core\n",
		"host/proc/sys/vm/untouched":                      "1\n",
		"settings/parameters":                             "vm.swappiness  10 \nnet.ipv4.tcp_rmem 4096 87380  6291456\nnet.ipv4.conf.eth0/100.forwarding 1\nkernel/core_pattern |/bin/x %P $(touch x) `y` \"'\\*\n",
	})
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(n.read("status/ok")).To(BeEmpty())
	n.Expect(strings.TrimSpace(n.read("host/proc/sys/vm/swappiness"))).To(Equal("10"))
	n.Expect(n.read("host/proc/sys/net/ipv4/tcp_rmem")).To(Equal("4096\t87380\t6291456\n"), "the same is not written again")
	n.Expect(n.read("host/proc/sys/net/ipv4/conf/eth0.100/forwarding")).To(Equal("1\n"))
	n.Expect(n.read("host/proc/sys/kernel/core_pattern")).To(Equal("|/bin/x %P $(touch x) `y` \"'\\*\n"))
	n.Expect(n.read("host/proc/sys/vm/untouched")).To(Equal("1\n"))
	n.Expect("x").NotTo(BeAnExistingFile(), "nothing is executed")
	n.Expect(n.read("status/problems")).To(BeEmpty())

	t.Log("the last line may have no end, and a * is no file")
	n.write("settings/parameters", "kernel.core_pattern * %s \\n \"$HOME\" ${x}")
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(n.read("host/proc/sys/kernel/core_pattern")).To(Equal("* %s \\n \"$HOME\" ${x}\n"))

	t.Log("what cannot be set is said, is why the Pod is not ready, and stops nothing else")
	n.write("settings/parameters", "vm.none 1\nvm.fixed 1\nnet.ipv4 1\nvm.swappiness 20\n")
	n.Expect(os.Symlink("/proc/sys/kernel/osrelease", filepath.Join(n.dir, "host/proc/sys/vm/fixed"))).To(Succeed(), "a file that nobody can write")
	said := n.looks()
	n.Expect(said).To(MatchRegexp("^n1: vm.none: this kernel has no such parameter\nn1: vm.fixed: is \\S+ and could not be set to 1\nn1: net.ipv4: this kernel has no such parameter\n$"))
	n.Expect(n.read("status/problems")).To(Equal(said), "the readiness probe prints it")
	n.Expect(filepath.Join(n.dir, "status/ok")).NotTo(BeAnExistingFile())
	n.Expect(n.read("host/proc/sys/vm/swappiness")).To(Equal("20\n"))

	t.Log("what is taken out keeps its value")
	n.write("settings/parameters", "")
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(n.read("host/proc/sys/vm/swappiness")).To(Equal("20\n"))
	n.Expect(filepath.Join(n.dir, "status/ok")).To(BeAnExistingFile())
}

func TestNodeMirrors(t *testing.T) {
	const certs, marker = "host/etc/containerd/certs.d/", "# Written by fleetwright: changes are lost.\n"
	n := newNode(t, map[string]string{
		"host/etc/containerd/config.toml": `config_path = "/etc/containerd/certs.d"`,
		"settings/runtime":                "containerd",
		"settings/mirror-0":               "docker.io\nserver = \"https://a\"\n",
		"settings/mirror-1":               "reg.example.org:5000\nserver = \"https://b\"\n",
	})
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(n.read(certs + "docker.io/hosts.toml")).To(Equal(marker + "server = \"https://a\"\n"))
	n.Expect(n.read(certs + "reg.example.org:5000/hosts.toml")).To(Equal(marker + "server = \"https://b\"\n"))
	n.Expect(filepath.Glob(filepath.Join(n.dir, certs, "*/*.new"))).To(BeEmpty())

	t.Log("what has changed is written anew")
	n.write("settings/mirror-0", "docker.io\nserver = \"https://c $(x) `y` %s\"\n")
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(n.read(certs + "docker.io/hosts.toml")).To(Equal(marker + "server = \"https://c $(x) `y` %s\"\n"))
	n.write(certs+"docker.io/hosts.toml", marker+"by hand\n")
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(n.read(certs + "docker.io/hosts.toml")).To(ContainSubstring("https://c"))

	t.Log("what is not wanted any more goes, and certificates of others stay")
	n.write(certs+"reg.example.org:5000/ca.crt", "theirs")
	n.Expect(os.Remove(filepath.Join(n.dir, "settings/mirror-0"))).To(Succeed())
	n.Expect(os.Remove(filepath.Join(n.dir, "settings/mirror-1"))).To(Succeed())
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.Expect(filepath.Join(n.dir, certs, "docker.io")).NotTo(BeADirectory())
	n.Expect(filepath.Join(n.dir, certs, "reg.example.org:5000/hosts.toml")).NotTo(BeAnExistingFile())
	n.Expect(n.read(certs + "reg.example.org:5000/ca.crt")).To(Equal("theirs"))

	t.Log("what others have written stays, wanted or not, and so do their links")
	n.write(certs+"docker.io/hosts.toml", "server = \"https://theirs\"\n")
	n.write(certs+"quay.io/hosts.toml", "")
	n.Expect(os.MkdirAll(filepath.Join(n.dir, certs, "ghcr.io"), 0o755)).To(Succeed())
	n.Expect(os.Symlink("/none", filepath.Join(n.dir, certs, "ghcr.io/hosts.toml"))).To(Succeed())
	n.Expect(os.MkdirAll(filepath.Join(n.dir, certs, "a.io/hosts.toml"), 0o755)).To(Succeed(), "a folder")
	others := []string{"docker.io", "quay.io", "ghcr.io", "a.io"}
	for i, registry := range others {
		n.write("settings/mirror-"+string(rune('0'+i)), registry+"\nserver = \"https://ours\"\n")
	}
	said := n.looks()
	for _, registry := range others {
		n.Expect(said).To(ContainSubstring("n1: mirror of " + registry + ": " + registry + "/hosts.toml is somebody else's and was left alone\n"))
	}
	n.Expect(n.read(certs + "docker.io/hosts.toml")).To(Equal("server = \"https://theirs\"\n"))
	n.Expect(n.read(certs + "quay.io/hosts.toml")).To(BeEmpty())
	n.Expect(os.Readlink(filepath.Join(n.dir, certs, "ghcr.io/hosts.toml"))).To(Equal("/none"))
	n.Expect(filepath.Glob(filepath.Join(n.dir, certs, "a.io/hosts.toml/*"))).To(BeEmpty())
	n.Expect(filepath.Join(n.dir, "status/ok")).NotTo(BeAnExistingFile())
}

func TestNodeRuntime(t *testing.T) {
	n := newNode(t, map[string]string{"settings/runtime": "containerd"})
	n.Expect(n.looks()).To(ContainSubstring("n1: containerd: it does not seem to be the runtime of this node\n"))
	n.write("mounts", "1 2 8:1 /var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/x/hosts /etc/hosts rw - ext4 /dev/sda rw\n")
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))
	n.write("settings/mirror-0", "docker.io\nserver = \"https://a\"\n")
	n.Expect(n.looks()).To(ContainSubstring("mirrors have no effect"))
	n.write("host/etc/containerd/config.toml", "# config_path = \"/etc/containerd/certs.d\"\n")
	n.Expect(n.looks()).To(ContainSubstring("mirrors have no effect"))
	n.write("host/etc/containerd/conf.d/certs.toml", "[plugins.x.registry]\n  config_path = \"/etc/containerd/certs.d\"\n")
	n.Expect(n.looks()).To(Equal("everything is as declared\n"))

	t.Log("a folder that cannot be made")
	n.write("settings/mirror-0", "quay.io\nserver = \"https://a\"\n")
	n.write("host/etc/containerd/certs.d/quay.io", "a file")
	n.Expect(n.looks()).To(Equal("n1: mirror of quay.io: hosts.toml could not be written\n"))
}

func TestNodeShellcheck(t *testing.T) {
	path, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("shellcheck is not here")
	}
	out, err := exec.Command(path, "../../fleet-templates/node/node.sh").CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(out))
}

// TestNodePod holds that the Pod has what its parameters need, and no more.
func TestNodePod(t *testing.T) {
	for _, tt := range []struct {
		name, spec        string
		capabilities      []corev1.Capability
		network, ipc, pid bool
		folders           []string
		notInEffectCount  int
	}{
		{name: "vm", spec: "{kernelParams: [{key: vm.swappiness, value: '1'}]}", folders: []string{"/proc/sys"}},
		{name: "net", spec: "{kernelParams: [{key: net.ipv4.ip_forward, value: '1'}]}", capabilities: []corev1.Capability{"NET_ADMIN"}, network: true, folders: []string{"/proc/sys"}},
		{name: "written as a path", spec: "{kernelParams: [{key: net/ipv4/ip_forward, value: '1'}]}", capabilities: []corev1.Capability{"NET_ADMIN"}, network: true, folders: []string{"/proc/sys"}},
		{name: "ipc", spec: "{kernelParams: [{key: kernel.shmmax, value: '1'}]}", ipc: true, folders: []string{"/proc/sys"}},
		{name: "pid", spec: "{kernelParams: [{key: kernel.pid_max, value: '1'}]}", pid: true, folders: []string{"/proc/sys"}},
		{name: "name", spec: "{kernelParams: [{key: kernel.domainname, value: x}]}", network: true, folders: []string{"/proc/sys"}},
		{name: "several", spec: "{kernelParams: [{key: net.core.somaxconn, value: '1'}, {key: net.core.bpf_jit_harden, value: '1'}, {key: kernel.dmesg_restrict, value: '1'}]}",
			capabilities: []corev1.Capability{"NET_ADMIN", "SYS_ADMIN"}, network: true, folders: []string{"/proc/sys"}},
		{name: "runtime", spec: "{containerRuntime: {type: containerd, config: {maxContainerCount: 1}}}", folders: []string{"/etc/containerd"}, notInEffectCount: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			config := parse(t, "metadata: {name: x}\nspec: "+tt.spec)
			config.Spec.Target.Fleet = "prod"
			r, err := Render(config)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.NotInEffect).To(HaveLen(tt.notInEffectCount))
			pod := daemonSet(t, r).Spec.Template.Spec
			g.Expect(pod.Containers[0].SecurityContext.Capabilities.Drop).To(Equal([]corev1.Capability{"ALL"}))
			g.Expect(pod.Containers[0].SecurityContext.Capabilities.Add).To(Equal(tt.capabilities))
			g.Expect(pod.HostNetwork).To(Equal(tt.network))
			g.Expect(pod.HostIPC).To(Equal(tt.ipc))
			g.Expect(pod.HostPID).To(Equal(tt.pid))
			var folders []string
			for _, v := range pod.Volumes {
				if v.HostPath != nil {
					folders = append(folders, v.HostPath.Path)
				}
			}
			g.Expect(folders).To(Equal(tt.folders))
		})
	}
}

// TestNodeChangeStartsAnew holds that another value is another Pod, for which Flux waits.
func TestNodeChangeStartsAnew(t *testing.T) {
	g := NewWithT(t)
	seen := map[string]bool{}
	for _, spec := range []string{"vm.swappiness, value: '1'", "vm.swappiness, value: '2'", "vm.dirty_ratio, value: '2'"} {
		r, err := Render(parse(t, "metadata: {name: x}\nspec: {target: {fleet: prod}, kernelParams: [{key: "+spec+"}]}"))
		g.Expect(err).NotTo(HaveOccurred())
		annotations := daemonSet(t, r).Spec.Template.Annotations
		g.Expect(annotations).To(HaveLen(1))
		for _, sum := range annotations {
			g.Expect(seen).NotTo(HaveKey(sum))
			seen[sum] = true
		}
	}
}

func daemonSet(t *testing.T, r *Rendered) *appsv1.DaemonSet {
	t.Helper()
	for _, o := range r.Objects {
		if o.GetKind() == "DaemonSet" {
			d := &appsv1.DaemonSet{}
			NewWithT(t).Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d)).To(Succeed())
			return d
		}
	}
	t.Fatal("there is no DaemonSet")
	return nil
}
