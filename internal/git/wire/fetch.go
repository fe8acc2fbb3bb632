package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"lockstep/events"
	"lockstep/internal/git/object"
)

// maxHaves is the maximum number of commits that a request names as already present.
const maxHaves = 64

// FetchRequest describes a fetch.
type FetchRequest struct {
	Tip     object.ID
	ByHash  bool // of Tip: a refusal is permanent
	Depth   events.Depth
	Haves   []object.ID // commits that are complete down to Shallow; the pack omits their objects
	Shallow []object.ID // commits whose parents are missing
}

// Fetch requests a pack and writes it to w. It returns the commits that are shallow once the pack is received. A
// classified error of w keeps its class.
func (r *Session) Fetch(ctx context.Context, want FetchRequest, w io.Writer) (shallow []object.ID, err error) {
	err = r.do(ctx, false, func(ctx context.Context) error {
		if !r.carrier.isReady() {
			if _, err := r.hello(ctx); err != nil {
				return err
			}
		}
		var err error
		if r.offered != nil {
			shallow, err = r.fetch2(ctx, want, w)
		} else {
			shallow, err = r.fetch0(ctx, want, w)
		}
		return err
	})
	switch {
	case err != nil && want.ByHash && events.ClassOf(err) != events.ClassLimited && ctx.Err() == nil && r.refusesCommit():
		return nil, r.noCommit(want.Tip)
	case err != nil:
		return nil, err
	}
	return shallow, nil
}

// fetch2 fetches with protocol 2.
func (r *Session) fetch2(ctx context.Context, want FetchRequest, w io.Writer) ([]object.ID, error) {
	request, shallow := r.offered.fetch(want)
	body, err := r.carrier.post(ctx, request, false)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	lines := newPktReader(body)
	update, err := readPackStart(lines)
	if err != nil {
		r.carrier.abort(false)
		return nil, err
	}
	if _, err := io.Copy(w, pack(lines)); err != nil {
		return nil, err
	}
	r.carrier.drain(body)
	return shallowAfter(shallow, update), nil
}

// fetch0 fetches with protocol 0, without negotiation: all lines are sent at once.
func (r *Session) fetch0(ctx context.Context, want FetchRequest, w io.Writer) ([]object.ID, error) {
	request, err := r.request(want)
	if err != nil {
		return nil, err
	}
	encoded, err := encoded(request)
	if err != nil {
		return nil, err
	}
	body, err := r.carrier.post(ctx, encoded, false)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	response := packp.NewUploadPackResponse(request)
	if err := response.Decode(body); err != nil {
		r.carrier.abort(false)
		return nil, err
	}
	if _, err := io.Copy(w, demultiplexed(request, response)); err != nil {
		return nil, err
	}
	r.carrier.drain(body)
	return shallowAfter(request.Shallows, response.ShallowUpdate), nil
}

func encoded(req *packp.UploadPackRequest) ([]byte, error) {
	var request bytes.Buffer
	if err := req.UploadRequest.Encode(&request); err != nil {
		return nil, err
	}
	if err := req.UploadHaves.Encode(&request, false); err != nil {
		return nil, err
	}
	err := pktline.NewEncoder(&request).EncodeString("done\n")
	return request.Bytes(), err
}

// shallowAfter returns the shallow commits after a response.
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

// request uses only capabilities that the remote offers, because some servers refuse others. It includes thin-pack
// even without haves, because Dulwich requires it. A server without shallow support sends the full history.
func (r *Session) request(want FetchRequest) (*packp.UploadPackRequest, error) {
	offered := r.capabilities
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

// deepen converts a depth to the Git protocol.
func deepen(d events.Depth) packp.DepthCommits {
	if d == events.DepthFull {
		return 1<<31 - 1 // Git's value for unlimited
	}
	return packp.DepthCommits(max(d, 1))
}

// demultiplexed returns the pack from a response, without the messages of a side-band.
func demultiplexed(request *packp.UploadPackRequest, response io.Reader) io.Reader {
	if request.Capabilities.Supports(capability.Sideband64k) || request.Capabilities.Supports(capability.Sideband) {
		return &sidebandReader{lines: pktline.NewScanner(response)}
	}
	return response
}
