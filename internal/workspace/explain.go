package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// step is a step in mounting an overlay that the kernel may forbid.
type step string

const (
	stepNamespace  step = "create a user namespace"
	stepSeparate   step = "separate the mounts"
	stepMount      step = "mount the overlay"
	stepWrite      step = "write to the overlay"
	stepCapability step = "mount an overlay that stays"
	stepProtect    step = "make the volume read-only"
)

// stepError is a failed step.
type stepError struct {
	step   step
	err    error
	folder string // of the layers
	owner  string // of the tree
	user   bool   // in a user namespace of our own
}

func (e *stepError) Unwrap() error { return e.err }

func (e *stepError) Error() string {
	if e.step == stepCapability {
		return "an overlay that stays needs CAP_SYS_ADMIN: run lockstep as root, or use workspace exec"
	}
	return fmt.Sprintf("%s: %v: %s", e.step, e.err, e.advice("/proc/sys"))
}

// advice says what forbids the step and what to do. sysctls is the folder of the kernel's settings.
func (e *stepError) advice(sysctls string) string {
	setting := func(name string) string {
		content, err := os.ReadFile(filepath.Join(sysctls, strings.ReplaceAll(name, ".", "/")))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(content))
	}
	is := func(errs ...error) bool {
		for _, err := range errs {
			if errors.Is(e.err, err) {
				return true
			}
		}
		return false
	}
	const orAdmin = ", or run lockstep with CAP_SYS_ADMIN"
	denied := is(unix.EPERM, unix.EACCES)
	switch {
	case e.step == stepNamespace && is(unix.ENOSPC):
		return fmt.Sprintf("user.max_user_namespaces is %s: raise it with sysctl%s", setting("user.max_user_namespaces"), orAdmin)
	case e.step == stepNamespace && is(unix.EINVAL, unix.ENOSYS):
		return "this kernel has no user namespaces (CONFIG_USER_NS): run lockstep with CAP_SYS_ADMIN"
	case (e.step == stepNamespace || e.user) && denied && setting("kernel.unprivileged_userns_clone") == "0":
		return "run sysctl kernel.unprivileged_userns_clone=1" + orAdmin
	case (e.step == stepNamespace || e.user && (e.step == stepMount || e.step == stepSeparate)) && denied && setting("kernel.apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor restricts user namespaces: load a profile for lockstep that has the rule userns, run sysctl kernel.apparmor_restrict_unprivileged_userns=0" + orAdmin
	case e.step == stepNamespace && denied:
		return "a seccomp or security profile, such as that of a container, forbids user namespaces: allow them" + orAdmin
	case e.step == stepSeparate && is(unix.EINVAL):
		return "the root folder is no mount point, as in a chroot: run lockstep outside of it"
	case e.step == stepMount && is(unix.ENODEV):
		return "this kernel has no overlay file system: run modprobe overlay"
	case e.step == stepMount && is(unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTSUP):
		return fmt.Sprintf("%s cannot hold the written files: choose a folder on ext4, XFS, btrfs or tmpfs, by --scratch or for create", e.folder)
	case e.step == stepMount && denied && e.user:
		return "an overlay in a user namespace needs Linux 5.11 or newer and a security profile that allows mounts: allow them" + orAdmin
	case (e.step == stepMount || e.step == stepSeparate) && denied:
		return "a security profile, such as that of a container, forbids mounts: allow them"
	case e.step == stepWrite && e.user && (denied || is(unix.EOVERFLOW)):
		return fmt.Sprintf("the tree belongs to %s: run lockstep as that user and group, or with CAP_SYS_ADMIN", e.owner)
	case is(unix.ENOSPC, unix.EDQUOT):
		return "free space, or choose another folder, by --scratch or for create"
	case is(unix.EROFS):
		return "choose a writable folder, by --scratch or for create"
	}
	return "see the kernel log (dmesg)"
}

// ownerOf describes the user and group of a file.
func ownerOf(path string) string {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return "another user"
	}
	return fmt.Sprintf("user %d, group %d", st.Uid, st.Gid)
}
