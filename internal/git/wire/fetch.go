package wire

import (
	"bufio"
	"context"
	"io"
	"slices"
	"strings"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

const (
	maxHaves    = 64      // commits that a request names as already present
	maxPrologue = 8 << 20 // bytes of lines before a pack; they name commits
)

// FetchRequest describes a fetch.
type FetchRequest struct {
	Tip     object.ID
	ByHash  bool // of Tip: a refusal is permanent
	Depth   git.Depth
	Haves   []object.ID // commits that are complete down to Shallow; the pack omits their objects
	Shallow []object.ID // commits whose parents are missing
}

// Fetch requests a pack and writes it to w. It returns the commits that are shallow once the pack is received. A
// classified error of w keeps its class.
func (r *Session) Fetch(ctx context.Context, want FetchRequest, w io.Writer) (shallow []object.ID, err error) {
	refused := false
	err = r.do(ctx, func(ctx context.Context) (err error) {
		shallow, err = r.fetch(ctx, want, w)
		refused = err != nil && r.refusesCommit(err)
		return err
	})
	switch {
	case refused && want.ByHash && git.ClassOf(err) != git.ClassBusy && ctx.Err() == nil:
		return nil, r.noCommit(want.Tip)
	case err != nil:
		return nil, err
	}
	return shallow, nil
}

func (r *Session) fetch(ctx context.Context, want FetchRequest, w io.Writer) ([]object.ID, error) {
	if !r.carrier.isReady() {
		if _, err := r.hello(ctx); err != nil {
			return nil, err
		}
	}
	if r.offered != nil {
		return r.fetch2(ctx, want, w)
	}
	return r.fetch0(ctx, want, w)
}

// fetch2 fetches with protocol 2.
func (r *Session) fetch2(ctx context.Context, want FetchRequest, w io.Writer) ([]object.ID, error) {
	request, shallow := r.offered.fetch(want)
	body, err := r.carrier.post(ctx, request, false, true)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	lines := newPktReader(body)
	update, err := readPackStart(lines)
	if err != nil {
		r.carrier.abort(err, false)
		return nil, err
	}
	if _, err := io.Copy(w, &sidebandReader{lines: lines.Reader}); err != nil {
		return nil, err
	}
	drain(body)
	return shallowAfter(shallow, update), nil
}

// fetch0 fetches with protocol 0, without negotiation: all lines are sent at once.
func (r *Session) fetch0(ctx context.Context, want FetchRequest, w io.Writer) ([]object.ID, error) {
	request := r.request(want)
	body, err := r.carrier.post(ctx, request.content, false, false)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	response := bufio.NewReader(body)
	update, err := readPackStart0(response, request.deepens)
	if err != nil {
		r.carrier.abort(err, false)
		return nil, err
	}
	var pack io.Reader = response
	if request.sideband {
		pack = &sidebandReader{lines: &pkt.Reader{Reader: response}}
	}
	if _, err := io.Copy(w, pack); err != nil {
		return nil, err
	}
	drain(body)
	return shallowAfter(request.shallow, update), nil
}

// shallowUpdate says which commits become shallow, and which are no longer.
type shallowUpdate struct{ shallow, unshallow []object.ID }

// add adds a line of a response.
func (u *shallowUpdate) add(line string) error {
	how, id, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch {
	case !object.IsID(id):
		return errGarbage
	case how == "shallow":
		u.shallow = append(u.shallow, object.ParseID(id))
	case how == "unshallow":
		u.unshallow = append(u.unshallow, object.ParseID(id))
	}
	return nil
}

// shallowAfter returns the shallow commits after a response.
func shallowAfter(before []object.ID, update shallowUpdate) []object.ID {
	skip := make(map[object.ID]bool, len(update.unshallow)+len(before)+len(update.shallow))
	for _, h := range update.unshallow {
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
	add(update.shallow)
	return after
}

// shallow adds the shallow commits and the depth of a request. It returns the shallow commits.
func (w *pktWriter) shallow(want FetchRequest) []object.ID {
	for _, id := range want.Shallow {
		w.Text("shallow %s", id)
	}
	w.Text("deepen %d", deepen(want.Depth))
	return slices.Clone(want.Shallow)
}

// haves adds the commits that are already present.
func (w *pktWriter) haves(want FetchRequest) {
	for _, id := range want.Haves[:min(len(want.Haves), maxHaves)] {
		w.Text("have %s", id)
	}
}

// deepen converts a depth to the Git protocol.
func deepen(d git.Depth) int {
	if d == git.FullDepth {
		return 1<<31 - 1 // Git's value for unlimited
	}
	return int(max(d, 1))
}
