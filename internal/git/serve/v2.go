package serve

import (
	"io"
	"slices"
	"strings"

	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

// agent is how the server names itself.
const agent = "lockstep"

// advertise answers the first request of a client: with capabilities under protocol 2, with the refs under protocol 0.
func (x *exchange) advertise() error {
	x.out.contentType("application/x-git-upload-pack-advertisement")
	var w pkt.Writer
	if x.Protocol == 2 {
		w.Text("version 2")
		w.Text("agent=%s", agent)
		w.Text("ls-refs=unborn")
		w.Text("fetch=shallow wait-for-done") // without ref-in-want: git clone fails if the ref has moved since it was listed
		w.Text("object-format=%s", x.repo.Format)
		w.Special(pkt.Flush)
	} else {
		w.Text("# service=git-upload-pack")
		w.Special(pkt.Flush)
		if err := x.hold(len(x.repo.Refs)); err != nil {
			x.refuseOpen(err)
			return err
		}
		x.repo.advertise0(&w)
	}
	x.repo = nil
	_, err := x.out.Write(w.Bytes())
	return err
}

// command2 answers a command of protocol 2.
func (x *exchange) command2(lines *pktReader, body io.Reader) error {
	command, hasArguments, err := x.readCommand(lines)
	if err != nil {
		return err
	}
	x.Command = command
	switch command {
	case "":
		return nil // a client that has nothing to ask
	case "ls-refs":
		list := lsRefs{}
		if hasArguments {
			if list, err = parseLsRefs(lines); err != nil {
				return err
			}
		}
		x.drain(body)
		w := &pkt.Writer{}
		if err := list.write(w, x.repo, x.hold); err != nil {
			return err
		}
		list, x.repo = lsRefs{}, nil
		return x.result(w)
	case "fetch":
		req := &fetchRequest{format: x.repo.Format, sideband: pkt.MaxLine}
		if hasArguments {
			if req, err = parseFetch2(lines, x.repo.Format); err != nil {
				return err
			}
		}
		x.drain(body)
		return x.fetch2(req)
	}
	return refusef("unknown command %.40q", command)
}

// readCommand reads a command and capabilities, up to the arguments if there are any.
func (x *exchange) readCommand(lines *pktReader) (command string, hasArguments bool, err error) {
	format := object.SHA1.String()
	for {
		text, kind, err := lines.next()
		if err != nil {
			return "", false, err
		}
		if kind != pkt.Text {
			if command != "" && format != x.repo.Format.String() {
				err = refusef("mismatched object format: the repository has %s", x.repo.Format)
			}
			return command, kind == pkt.Delim, err
		}
		name, value, _ := strings.Cut(string(text), "=")
		switch name {
		case "command":
			command = value
		case "object-format":
			format = value
		}
	}
}

// lsRefs is a request for a list of refs.
type lsRefs struct {
	peel, symrefs, unborn bool
	prefixes              []string // none for all refs
}

func parseLsRefs(lines *pktReader) (l lsRefs, err error) {
	prefixes := 0
	for {
		text, kind, err := lines.next()
		switch {
		case err != nil:
			return l, err
		case kind == pkt.Flush:
			if prefixes > maxPrefixes {
				l.prefixes = nil
			}
			return l, nil
		case kind != pkt.Text:
			return l, refusef("the arguments of ls-refs do not end in a flush")
		}
		name, value, _ := strings.Cut(string(text), " ")
		switch name {
		case "peel":
			l.peel = true
		case "symrefs":
			l.symrefs = true
		case "unborn":
			l.unborn = true
		case "ref-prefix":
			if prefixes++; prefixes <= maxPrefixes {
				l.prefixes = append(l.prefixes, value)
			}
		default:
			return l, refusef("unknown argument %.80q of ls-refs", text)
		}
	}
}

func (l *lsRefs) matches(name string) bool {
	isPrefix := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return len(l.prefixes) == 0 || slices.ContainsFunc(l.prefixes, isPrefix)
}

// write lists the refs of a repository. It calls hold for each linesStep of them.
func (l *lsRefs) write(w *pkt.Writer, repo *Repo, hold func(lines int) error) error {
	listed := 0
	if l.matches("HEAD") {
		target := ""
		if l.symrefs && repo.Head != "" {
			target = " symref-target:" + repo.Head
		}
		switch {
		case !repo.HeadID.IsZero():
			w.Text("%s HEAD%s", repo.HeadID, target)
		case l.unborn && repo.Head != "":
			w.Text("unborn HEAD%s", target)
		}
	}
	for _, ref := range repo.Refs {
		if !l.matches(ref.Name) {
			continue
		}
		if l.peel && !ref.Peeled.IsZero() {
			w.Text("%s %s peeled:%s", ref.ID, ref.Name, ref.Peeled)
		} else {
			w.Text("%s %s", ref.ID, ref.Name)
		}
		if listed++; listed%linesStep == 0 {
			if err := hold(linesStep); err != nil {
				return err
			}
		}
	}
	w.Special(pkt.Flush)
	return nil
}

// fetch2 answers a fetch of protocol 2.
func (x *exchange) fetch2(req *fetchRequest) error {
	if len(req.wants) == 0 && !req.waitForDone {
		x.out.contentType("application/x-git-upload-pack-result")
		return nil
	}
	return x.answer(req, (*negotiation).answer2)
}

// answer2 writes what comes before the pack. ready is false if there is to be no pack yet.
func (n *negotiation) answer2(w *pkt.Writer) (p plan, ready bool, err error) {
	t, err := n.targets()
	if err != nil {
		return p, false, err
	}
	acks, haves, err := n.common()
	if err != nil {
		return p, false, err
	}
	if !n.req.done && len(n.req.haves) > 0 && (len(haves) == 0 || n.req.waitForDone) {
		writeAcks(w, acks, false)
		return p, false, nil
	}
	b, err := n.boundary(t.commits)
	if err != nil {
		return p, false, err
	}
	if p, err = n.plan(t, haves, b); err != nil {
		return p, false, err
	}
	if !n.req.done && len(n.req.haves) > 0 {
		ready = p.satisfies(t.commits)
		writeAcks(w, acks, ready)
		if !ready {
			return p, false, nil
		}
	}
	if n.req.deepens() {
		w.Text("shallow-info")
		b.write(w)
		w.Special(pkt.Delim)
	}
	w.Text("packfile")
	return p, true, nil
}

func writeAcks(w *pkt.Writer, acks []object.ID, ready bool) {
	w.Text("acknowledgments")
	if len(acks) == 0 {
		w.Text("NAK")
	}
	for _, id := range acks {
		w.Text("ACK %s", id)
	}
	if ready {
		w.Text("ready")
		w.Special(pkt.Delim)
	} else {
		w.Special(pkt.Flush)
	}
}

// write lists the commits that become shallow and those that are no longer.
func (b *boundary) write(w *pkt.Writer) {
	for _, id := range b.shallow {
		w.Text("shallow %s", id)
	}
	for _, id := range b.unshallow {
		w.Text("unshallow %s", id)
	}
}
