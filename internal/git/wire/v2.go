package wire

import (
	"bytes"
	"io"
	"slices"
	"strings"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

// maxCapabilities is the maximum number of bytes of a list of capabilities. Servers send less than 1 kB.
const maxCapabilities = 64 << 10

// protocol2 has the capabilities of a server of protocol 2.
type protocol2 struct {
	unborn  bool // ls-refs reports the branch of HEAD in an empty repository
	shallow bool // fetch supports shallow and deepen
	format  object.Format
	named   bool // the server expects object-format
}

// readAdvertisement reads the answer to the first request: refs under protocol 0, capabilities under protocol 2.
func readAdvertisement(body io.Reader) (*advertisement, *protocol2, error) {
	lines := newPktReader(body)
	text, kind, err := lines.next()
	if err == nil && bytes.HasPrefix(text, []byte("#")) { // the name of the service
		if text, kind, err = lines.next(); err == nil && kind == pkt.Flush {
			text, kind, err = lines.next()
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if string(text) == "version 2" {
		offered, err := readCapabilities(lines)
		return nil, offered, err
	}
	refs, err := readRefs0(lines, text, kind)
	return refs, nil, err
}

// readCapabilities reads a list of capabilities to its end.
func readCapabilities(lines *pktReader) (*protocol2, error) {
	offered, listed, fetched := &protocol2{}, false, false
	lines.left, lines.tooLong = maxCapabilities, errGarbage
	for {
		text, kind, err := lines.next()
		switch {
		case err != nil:
			return nil, err
		case kind == pkt.Flush && listed && fetched:
			return offered, nil
		case kind != pkt.Text:
			return nil, errGarbage
		}
		name, value, _ := strings.Cut(string(text), "=")
		features := strings.Fields(value)
		switch name {
		case "ls-refs":
			listed, offered.unborn = true, slices.Contains(features, "unborn")
		case "fetch":
			fetched, offered.shallow = true, slices.Contains(features, "shallow")
		case "object-format":
			offered.named = true
			var err error
			if offered.format, err = formatOf(value); err != nil {
				return nil, err
			}
		}
	}
}

// command begins a request.
func (p *protocol2) command(name string) *pktWriter {
	w := &pktWriter{}
	w.Text("command=%s", name)
	if p.named {
		w.Text("object-format=%s", p.format)
	}
	w.Special(pkt.Delim)
	return w
}

// lsRefs returns a request for the refs that begin with one of the prefixes, or for all refs.
func (p *protocol2) lsRefs(prefixes []string) []byte {
	w := p.command("ls-refs")
	w.Text("peel")
	w.Text("symrefs")
	if p.unborn {
		w.Text("unborn")
	}
	for _, prefix := range prefixes {
		w.Text("ref-prefix %s", prefix)
	}
	w.Special(pkt.Flush)
	return w.Bytes()
}

// readRefs reads the response to ls-refs. If HEAD names a branch, that branch is in the result, even if it is
// not listed itself.
func (p *protocol2) readRefs(lines *pktReader) (*advertisement, error) {
	refs := newAdvertisement()
	refs.format = p.format
	for {
		text, kind, err := lines.next()
		switch {
		case err != nil:
			return nil, err
		case kind == pkt.Flush:
			return refs, nil
		case kind != pkt.Text:
			return nil, errGarbage
		}
		if err := refs.add(strings.Split(string(text), " ")); err != nil {
			return nil, err
		}
	}
}

// add adds a line of the response to ls-refs: an ID, a name and attributes.
func (a *advertisement) add(fields []string) error {
	switch {
	case len(fields) < 2 || fields[1] == "":
		return errGarbage
	case fields[0] == "unborn":
		return nil
	}
	name := fields[1]
	id, ok := a.parseID(fields[0])
	if !ok {
		return errGarbage
	}
	for _, attribute := range fields[2:] {
		if peeled, ok := strings.CutPrefix(attribute, "peeled:"); ok {
			if a.peeled[name], ok = a.parseID(peeled); !ok {
				return errGarbage
			}
		}
		if target, ok := strings.CutPrefix(attribute, "symref-target:"); ok && name == "HEAD" && target != "" &&
			a.head.IsZero() {
			a.refs[target] = id
			a.capabilities["symref"] = []string{"HEAD:" + target}
		}
	}
	if name == "HEAD" {
		a.head = id
		return nil
	}
	a.refs[name] = id
	return nil
}

// fetch returns a request for a pack, and the shallow commits that it names.
func (p *protocol2) fetch(want FetchRequest) (request []byte, shallow []object.ID) {
	w := p.command("fetch")
	for _, option := range []string{"thin-pack", "no-progress", "ofs-delta"} {
		w.Text("%s", option)
	}
	if p.shallow && (want.Depth != git.FullDepth || len(want.Shallow) > 0) {
		shallow = w.shallow(want)
	}
	w.Text("want %s", want.Tip)
	w.haves(want)
	w.Text("done")
	w.Special(pkt.Flush)
	return w.Bytes(), shallow
}

// readPackStart reads a response to fetch up to the pack.
func readPackStart(lines *pktReader) (update shallowUpdate, err error) {
	lines.left, lines.tooLong = maxPrologue, errLongPrologue
	section := ""
	for {
		text, kind, err := lines.next()
		switch {
		case err != nil:
			return update, err
		case kind == pkt.Delim:
			section = ""
			continue
		case kind != pkt.Text:
			return update, errGarbage
		case section == "":
			if section = string(text); section == "packfile" {
				return update, nil
			}
			continue
		case section != "shallow-info":
			continue // acknowledgments, which a request with "done" does not need
		}
		if err := update.add(string(text)); err != nil {
			return update, err
		}
	}
}
