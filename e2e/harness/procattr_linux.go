package harness

import "syscall"

// procAttr puts a process into a group of its own, so that Ctrl-C reaches only us, and has the kernel kill it when we
// end, however we end.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
