package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
)

// maxHaves bounds how many commits we tell the remote we have.
const maxHaves = 64

// fetch asks for want, one commit deep, and writes the pack to a file at path. The pack may be thin:
// it leaves out what the commits in haves bring along.
func (r *remote) fetch(ctx context.Context, want plumbing.Hash, haves []plumbing.Hash, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("fetch %.12s: %w", want, remoteError(ctx, r.host, r.auth, r.wire.firstFault(), err))
		}
	}()
	defer recoverTo(&err)
	r.wire.reset()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return volumeError("write the fetched pack", err)
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = volumeError("write the fetched pack", closeErr)
		}
	}()
	request, err := r.request(want, haves)
	if err != nil {
		return err
	}
	response, err := r.session.UploadPack(ctx, request)
	if err != nil {
		return err
	}
	defer response.Close()
	out := &sink{w: file}
	if _, err := io.Copy(out, demultiplexed(request, response)); err != nil {
		if out.err != nil {
			return volumeError("write the fetched pack", out.err)
		}
		return err
	}
	return ctx.Err()
}

// request is go-git's own, with what go-git leaves out for being unsure of it elsewhere: thin packs.
func (r *remote) request(want plumbing.Hash, haves []plumbing.Hash) (*packp.UploadPackRequest, error) {
	request := packp.NewUploadPackRequestFromCapabilities(r.refs.Capabilities)
	request.Wants = []plumbing.Hash{want}
	set := []capability.Capability{capability.NoProgress}
	if len(haves) > 0 {
		request.Haves = haves[:min(len(haves), maxHaves)]
		request.Shallows = append([]plumbing.Hash(nil), request.Haves...)
		set = append(set, capability.ThinPack)
	}
	if r.refs.Capabilities.Supports(capability.Shallow) {
		request.Depth = packp.DepthCommits(1)
		set = append(set, capability.Shallow)
	} else {
		request.Shallows = nil
	}
	return request, errors.Join(setAll(request.Capabilities, set)...)
}

func setAll(list *capability.List, capabilities []capability.Capability) (errs []error) {
	for _, c := range capabilities {
		errs = append(errs, list.Set(c))
	}
	return errs
}

// demultiplexed returns the pack alone out of a response that may carry messages beside it.
func demultiplexed(request *packp.UploadPackRequest, response io.Reader) io.Reader {
	switch {
	case request.Capabilities.Supports(capability.Sideband64k):
		return sideband.NewDemuxer(sideband.Sideband64k, response)
	case request.Capabilities.Supports(capability.Sideband):
		return sideband.NewDemuxer(sideband.Sideband, response)
	}
	return response
}

// fetchedPack is where a quarantine keeps the pack as it came.
func fetchedPack(quarantine string) string { return filepath.Join(quarantine, "fetched.pack") }
