//go:build !linux

package harness

import "syscall"

// procAttr puts a process into a group of its own, so that Ctrl-C reaches only us.
func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
