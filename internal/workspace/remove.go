package workspace

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"lockstep/internal/volume"
)

// Remove removes a workspace with everything in it, and unpins its tree. It fails if an overlay is in use or the workspace is on
// another machine; with force it detaches the overlay, which goes once it is unused, and forgets the workspace.
func Remove(l Listed, force bool) error {
	switch {
	case l.State == StateRunning:
		return fmt.Errorf("workspace %s is in use by lockstep workspace exec: end that command", l.ID)
	case l.State == StateKilled && l.Record == "": // of Exec
		gone, err := sweep(l.Layers)
		if err == nil && !gone {
			err = fmt.Errorf("workspace %s is about to be used by lockstep workspace exec", l.ID)
		}
		return err
	case l.State == StateDamaged:
		if !force {
			return errors.New(l.Err)
		}
		return volume.ForgetWorkspace(l.Workspace)
	case l.State == StateElsewhere:
		if !force {
			return fmt.Errorf("workspace %s is on %s: remove it there or, if it no longer exists, use --force", l.ID, l.Host)
		}
		return volume.ForgetWorkspace(l.Workspace)
	}
	if err := removeFiles(l.Workspace, force); err != nil {
		return fmt.Errorf("remove workspace %s: %w", l.ID, err)
	}
	return volume.ForgetWorkspace(l.Workspace) // last, so that a failed removal can be repeated
}

func removeFiles(w volume.Workspace, force bool) error {
	if w.Layers != "" {
		if !isMounted(w) && !force {
			if err := checkMountedElsewhere(w); err != nil {
				return fmt.Errorf("%w, or use --force", err)
			}
		}
		if err := detach(w, force); err != nil {
			return err
		}
		if err := removeAll(w.Layers); err != nil {
			return err
		}
	}
	ours, err := hasID(w.Dir, w.ID)
	if err != nil {
		return err
	}
	if ours {
		return removeAll(w.Dir)
	}
	_ = unix.Rmdir(w.Dir) // an empty folder; others may have put files there
	return nil
}

// detach unmounts the overlay of a workspace if it is mounted.
func detach(w volume.Workspace, force bool) error {
	for isMounted(w) {
		flags := unix.UMOUNT_NOFOLLOW
		if force {
			flags |= unix.MNT_DETACH
		}
		err := unix.Unmount(w.Dir, flags)
		switch {
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("%s is in use: end the processes that use it, or use --force", w.Dir)
		case errors.Is(err, unix.EPERM):
			return fmt.Errorf("unmount %s: %w: run lockstep with CAP_SYS_ADMIN", w.Dir, err)
		case err != nil:
			return fmt.Errorf("unmount %s: %w", w.Dir, err)
		}
	}
	return nil
}
