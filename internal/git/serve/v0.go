package serve

import (
	"fmt"
	"io"

	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

const capabilities0 = "multi_ack_detailed no-done thin-pack side-band-64k ofs-delta shallow deepen-since deepen-not " +
	"deepen-relative no-progress include-tag allow-tip-sha1-in-want allow-reachable-sha1-in-want"

// advertise0 lists the refs for clients of protocol 0.
func (r *Repo) advertise0(w *pkt.Writer) {
	capabilities := capabilities0
	if r.Head != "" && !r.HeadID.IsZero() {
		capabilities += " symref=HEAD:" + r.Head
	}
	capabilities += fmt.Sprintf(" object-format=%s agent=%s", r.Format, agent)
	first := true
	add := func(id object.ID, name string) {
		if first {
			name, first = name+"\x00"+capabilities, false
		}
		w.Text("%s %s", id, name)
	}
	if !r.HeadID.IsZero() {
		add(r.HeadID, "HEAD")
	}
	for _, ref := range r.Refs {
		add(ref.ID, ref.Name)
		if !ref.Peeled.IsZero() {
			add(ref.Peeled, ref.Name+"^{}")
		}
	}
	if first {
		w.Text("%0*d capabilities^{}\x00%s", 2*r.Format.Size(), 0, capabilities)
	}
	w.Special(pkt.Flush)
}

// fetch0 answers a request of protocol 0.
func (x *exchange) fetch0(lines *pktReader, body io.Reader) error {
	x.Command = "fetch"
	req, err := parseFetch0(lines, x.repo.Format)
	if err != nil {
		return err
	}
	x.drain(body)
	if len(req.wants) == 0 {
		x.out.contentType("application/x-git-upload-pack-result")
		return nil
	}
	return x.answer(req, (*negotiation).answer0)
}

// answer0 writes what comes before the pack. ready is false if there is to be no pack yet.
func (n *negotiation) answer0(w *pkt.Writer) (p plan, ready bool, err error) {
	t, err := n.targets()
	if err != nil {
		return p, false, err
	}
	acks, haves, err := n.common()
	if err != nil {
		return p, false, err
	}
	b, err := n.boundary(t.commits)
	if err != nil {
		return p, false, err
	}
	if n.req.deepens() {
		b.write(w)
		w.Special(pkt.Flush)
	}
	if !n.req.negotiates {
		return p, false, nil
	}
	if n.req.done || len(haves) > 0 {
		if p, err = n.plan(t, haves, b); err != nil {
			return p, false, err
		}
	}
	return p, n.acknowledge0(w, acks, len(haves) > 0 && p.satisfies(t.commits)), nil
}

// acknowledge0 writes the acknowledgements, and reports whether the pack follows. enough says that the client
// has an ancestor of each want.
func (n *negotiation) acknowledge0(w *pkt.Writer, acks []object.ID, enough bool) (ready bool) {
	r := n.req
	last := object.ZeroID
	for _, id := range acks {
		switch {
		case r.detailed:
			w.Text("ACK %s common", id)
		case last.IsZero():
			w.Text("ACK %s", id)
		}
		last = id
	}
	if r.done {
		switch {
		case len(acks) == 0:
			w.Text("NAK")
		case r.detailed:
			w.Text("ACK %s", last)
		}
		return true
	}
	enough = enough && r.detailed
	if enough {
		w.Text("ACK %s ready", last)
	}
	if len(acks) == 0 || r.detailed {
		w.Text("NAK")
	}
	if enough && r.noDone {
		w.Text("ACK %s", last)
		return true
	}
	return false
}
