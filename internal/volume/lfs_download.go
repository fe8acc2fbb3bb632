package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// obtainLarge downloads the LFS objects that the plan's tree needs and the repository does not have.
// Submodules whose objects cannot be had are then missing, if that is accepted.
func (s *syncer) obtainLarge(ctx context.Context) error {
	for {
		if err := s.takeSlot(ctx); err != nil {
			return err
		}
		l, err := s.useLarge(ctx, s.req.LFS)
		if s.large = l; err != nil || l == nil {
			return err
		}
		s.progress.begin(events.PhaseFetch, "", 0)
		l.dial = func(ctx context.Context, folder string) (*lfs.Client, error) { return s.lfsClient(ctx, l, folder) }
		missing, failed, err := l.missing(ctx, s.plan, s.v.cfg.MaxFileBytes)
		if err != nil {
			return err
		}
		if len(failed) == 0 {
			failed, err = s.downloadLarge(ctx, l, missing)
		}
		switch {
		case err != nil:
			return err
		case len(failed) == 0:
			s.v.done("lfs")
			return l.store.Clear()
		}
		if err := s.lackParts(ctx, failed); err != nil {
			return err
		}
	}
}

// downloadLarge downloads objects, by tree. failed has the errors of submodules by path.
func (s *syncer) downloadLarge(
	ctx context.Context, l *largeFiles, missing []lfs.Object,
) (failed map[string]error, err error) {
	if err := l.store.Retain(missing); err != nil {
		return nil, err
	}
	if err := s.checkLarge(ctx, missing); err != nil {
		return nil, err
	}
	bytes := int64(0)
	byFolder := map[string][]lfs.Object{"": nil}
	for _, o := range missing {
		bytes += o.Size
		folder := l.files.FolderOf(o.Path)
		byFolder[folder] = append(byFolder[folder], o)
	}
	s.progress.begin(events.PhaseFetch, "bytes", bytes)
	if len(missing) > 0 {
		s.slot.leave()
	}
	failed = map[string]error{}
	for _, folder := range slices.Sorted(maps.Keys(byFolder)) {
		client, err := l.dial(ctx, folder)
		if err == nil {
			var stored []string
			stored, err = client.Download(ctx, byFolder[folder])
			if s.meter.running {
				s.meter.own += sizeOf(stored)
			}
		}
		switch {
		case err == nil:
		case folder == "" || ctx.Err() != nil:
			return nil, aboutPart(fmt.Errorf("%w: %w", ErrLFS, err))
		default:
			failed[folder] = s.refusedLarge(ctx, folder, aboutPart(fmt.Errorf("%v: %w", ErrLFS, err))) //nolint:errorlint // only the text: the part fails
		}
	}
	return failed, nil
}

// ErrLFS means that the LFS server of a repository failed, which may be another than its remote. It is not used for
// those of submodules.
var ErrLFS = errors.New("fetch LFS objects")

// lfsClient returns the client for the LFS server of the tree at a folder: that of a submodule, or "" for the top.
func (s *syncer) lfsClient(ctx context.Context, l *largeFiles, folder string) (*lfs.Client, error) {
	config, err := l.files.Config(folder)
	if err != nil {
		return nil, err
	}
	url, ref, foreign := s.req.URL, s.ref.String(), s.req.Foreign
	from := PartRemote{AuthFor: s.req.AuthFor, Limiter: s.req.Limiter}
	if folder != "" {
		url, ref = s.partAt(folder).URL, ""
		foreign = s.isForeign(url)
		if from, err = s.partRemote(ctx, url); err != nil {
			return nil, err
		}
	}
	asked := s.v.net.Asked(url)
	server, err := config.Server(asked, ref)
	if err != nil {
		return nil, err
	}
	origin := asked
	if rewritten := s.v.net.Asked(server); rewritten != server {
		server, origin = rewritten, rewritten
	}
	if from.AuthFor == nil {
		from.AuthFor = func(context.Context, string) (wire.Auth, error) { return wire.Auth{}, nil }
	}
	sender := &wire.Sender{
		Network: s.v.net, Remote: origin, Foreign: foreign && origin == url,
		Limits: s.v.cfg.wireLimits(from.Limiter), Auth: from.AuthFor,
	}
	return &lfs.Client{Server: server, Ref: ref, Sender: sender, Store: l.store, Count: s.progress.count}, nil
}

// refusedLarge returns the error to report for one of a submodule's LFS server.
func (s *syncer) refusedLarge(ctx context.Context, folder string, err error) error {
	from, resolveErr := s.partRemote(ctx, s.partAt(folder).URL)
	if resolveErr == nil && from.Refused != nil && events.ClassOf(err) == events.ClassAuth {
		err, _ = from.Refused(err)
	}
	return err
}

// partAt returns the submodule of the plan at a path.
func (s *syncer) partAt(path string) checkout.Part {
	for _, part := range s.plan.Parts().List {
		if part.Path == path {
			return part
		}
	}
	return checkout.Part{}
}

// missing returns the objects that the store does not have, each once. failed has the errors of submodules by path.
func (l *largeFiles) missing(
	ctx context.Context, plan *checkout.Plan, maxBytes int64,
) (missing []lfs.Object, failed map[string]error, err error) {
	defer object.RecoverCorrupt(&err)
	failed = map[string]error{}
	fail := func(path string, class events.Class, format string, args ...any) error {
		err := events.Errorf(events.Permanent, class, format, args...)
		folder := l.files.FolderOf(path)
		if folder == "" {
			return err
		}
		failed[folder] = cmp.Or(failed[folder], err)
		return nil
	}
	sizes := map[lfs.OID]int64{}
	err = plan.NewFiles(func(path string, _ bool, blob object.ID) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p, ok, err := l.files.Pointer(path, blob)
		if err != nil || !ok || p.Size == 0 {
			return err
		}
		if size, known := sizes[p.OID]; known {
			if size != p.Size {
				return fail(path, events.ClassConfig,
					"the LFS pointer %q has another size for object %s than another pointer; correct it", path, p.OID)
			}
			return nil
		}
		if p.Size > maxBytes {
			return fail(path, events.ClassQuota, "the LFS object of %q has %s, more than max-file-bytes %s; "+
				"exclude it or raise it in the setting limits",
				path, BytesText(p.Size), BytesText(maxBytes))
		}
		sizes[p.OID] = p.Size
		has, err := l.store.Has(ctx, p)
		if err == nil && !has {
			missing = append(missing, lfs.Object{Pointer: p, Path: path})
		}
		return err
	})
	return missing, failed, err
}

// checkLarge fails if the objects to download do not fit into the limits.
func (s *syncer) checkLarge(ctx context.Context, missing []lfs.Object) error {
	bytes := int64(0)
	for _, o := range missing {
		if bytes += o.Size; bytes > s.v.cfg.MaxTreeBytes {
			return events.Errorf(events.Permanent, events.ClassQuota, "the LFS objects to fetch have more than "+
				"max-tree-bytes %s; exclude some or raise it in the setting limits",
				BytesText(s.v.cfg.MaxTreeBytes))
		}
	}
	if bytes == 0 || !s.meter.running {
		return nil
	}
	return s.checkRoom(ctx, bytes)
}
