package wire

import (
	"context"
	"errors"
	"io"
	"slices"

	"lockstep/internal/git/object"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"lockstep/events"
)

// maxHaves bounds how many commits we tell the remote we have.
const maxHaves = 64

// FetchRequest is what a fetch asks for.
type FetchRequest struct {
	Tip     object.ID
	Depth   events.Depth
	Haves   []object.ID // commits that are there whole, down to those in shallow; the pack leaves out what they bring along
	Shallow []object.ID // commits whose parents are not there
}

// Fetch writes the pack that the remote answers with to w. It returns which commits will be shallow once the pack
// has been received. An error of w's own keeps its class.
func (r *Session) Fetch(ctx context.Context, want FetchRequest, w io.Writer) (shallow []object.ID, err error) {
	within, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	defer func() {
		if err != nil {
			err = r.fault(ctx, within, err)
		}
	}()
	defer recoverTo(&err)
	r.wire.reset()
	request, err := r.request(want)
	if err != nil {
		return nil, err
	}
	response, err := r.session.UploadPack(within, request)
	if err != nil {
		return nil, err
	}
	defer response.Close()
	if _, err := io.Copy(w, demultiplexed(request, response)); err != nil {
		return nil, err
	}
	return shallowAfter(request.Shallows, response.ShallowUpdate), within.Err()
}

// shallowAfter is how shallow what is there is after an answer.
func shallowAfter(before []object.ID, update packp.ShallowUpdate) []object.ID {
	skip := make(map[object.ID]bool, len(update.Unshallows)+len(before)+len(update.Shallows))
	for _, h := range update.Unshallows {
		skip[h] = true
	}
	var after []object.ID
	add := func(hashes []object.ID) {
		for _, h := range hashes {
			if !skip[h] {
				skip[h] = true
				after = append(after, h)
			}
		}
	}
	add(before)
	clear(skip)
	for _, h := range after {
		skip[h] = true
	}
	add(update.Shallows)
	return after
}

// request asks for what the remote offers, and for nothing else: some servers refuse a client that names a
// capability of which they said nothing, and Dulwich one that does not take thin packs, though a pack for
// nobody who has anything is never thin. Without shallow they send the whole history, which is taken;
// without thin-pack a pack that is complete; without a side-band the pack alone.
func (r *Session) request(want FetchRequest) (*packp.UploadPackRequest, error) {
	offered := r.refs.Capabilities
	request := packp.NewUploadPackRequestFromCapabilities(offered)
	request.Wants = []object.ID{want.Tip}
	var errs []error
	set := func(c capability.Capability) { errs = append(errs, request.Capabilities.Set(c)) }
	if offered.Supports(capability.NoProgress) {
		set(capability.NoProgress)
	}
	if len(want.Haves) > 0 {
		request.Haves = slices.Clone(want.Haves[:min(len(want.Haves), maxHaves)])
	}
	if offered.Supports(capability.Shallow) && (want.Depth != events.DepthFull || len(want.Shallow) > 0) {
		request.Depth = deepen(want.Depth)
		request.Shallows = slices.Clone(want.Shallow)
		set(capability.Shallow)
	}
	return request, errors.Join(errs...)
}

// deepen is how a depth is asked for.
func deepen(d events.Depth) packp.DepthCommits {
	if d == events.DepthFull {
		return 1<<31 - 1 // Git's own word for it
	}
	return packp.DepthCommits(max(d, 1))
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
