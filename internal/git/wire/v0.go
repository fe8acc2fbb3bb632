package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

// readRefs0 reads a list of refs of protocol 0, whose first line is given. An empty repository has none.
func readRefs0(lines *pktReader, text []byte, kind pkt.Kind) (refs *advertisement, err error) {
	for {
		switch {
		case kind == pkt.Flush && refs == nil:
			return newAdvertisement(), nil
		case kind == pkt.Flush:
			return refs, nil
		case kind != pkt.Text:
			return nil, errGarbage
		case refs == nil:
			refs, err = firstRef0(string(text))
		case !bytes.HasPrefix(text, []byte("shallow ")):
			err = refs.add0(string(text))
		}
		if err == nil {
			text, kind, err = lines.next()
		}
		if err != nil {
			return nil, err
		}
	}
}

// firstRef0 parses the first line of a list, which ends in the capabilities. That of an empty repository has no ref.
func firstRef0(line string) (*advertisement, error) {
	ref, offered, ok := strings.Cut(line, "\x00")
	if !ok {
		return nil, errGarbage
	}
	refs := newAdvertisement()
	for field := range strings.FieldsSeq(offered) {
		name, value, _ := strings.Cut(field, "=")
		refs.capabilities[name] = append(refs.capabilities[name], value)
	}
	var err error
	if named := refs.capabilities["object-format"]; len(named) > 0 {
		if refs.format, err = formatOf(named[0]); err != nil {
			return nil, err
		}
	}
	if strings.HasSuffix(ref, " capabilities^{}") {
		return refs, nil
	}
	return refs, refs.add0(ref)
}

// add0 adds a line of a list.
func (a *advertisement) add0(line string) error {
	text, name, _ := strings.Cut(line, " ")
	id, ok := a.parseID(text)
	switch {
	case !ok || name == "" || strings.Contains(name, " "):
		return errGarbage
	case name == "HEAD":
		a.head = id
	case strings.HasSuffix(name, "^{}"):
		a.peeled[strings.TrimSuffix(name, "^{}")] = id
	default:
		a.refs[name] = id
	}
	return nil
}

// request0 is a request for a pack.
type request0 struct {
	content  []byte
	shallow  []object.ID // the shallow commits that it names
	deepens  bool        // the response begins with shallow commits
	sideband bool
}

// request uses only capabilities that the remote offers, because some servers refuse others. It includes thin-pack even
// without haves, because Dulwich requires it. A server without shallow support sends the full history.
func (r *Session) request(want FetchRequest) request0 {
	var req request0
	offered := r.capabilities
	var options []string
	useFirst := func(names ...string) bool {
		for _, name := range names {
			if offered.has(name) {
				options = append(options, name)
				return true
			}
		}
		return false
	}
	useFirst("multi_ack_detailed", "multi_ack")
	req.sideband = useFirst("side-band-64k", "side-band")
	useFirst("thin-pack")
	useFirst("ofs-delta")
	if offered.has("agent") {
		options = append(options, "agent="+capability.DefaultAgent())
	}
	useFirst("no-progress")
	req.deepens = (want.Depth != git.FullDepth || len(want.Shallow) > 0) && useFirst("shallow")
	w := &pktWriter{}
	w.Text("%s", strings.TrimRight("want "+want.Tip.String()+" "+strings.Join(options, " "), " "))
	if req.deepens {
		req.shallow = w.shallow(want)
	}
	w.Special(pkt.Flush)
	w.haves(want)
	w.Text("done")
	req.content = w.Bytes()
	return req
}

// readPackStart0 reads a response up to the pack.
func readPackStart0(in *bufio.Reader, deepens bool) (update shallowUpdate, err error) {
	lines := &pktReader{Reader: &pkt.Reader{Reader: in}, left: maxPrologue, tooLong: errLongPrologue}
	for deepens {
		text, kind, err := lines.next()
		switch {
		case err != nil:
			return update, err
		case kind == pkt.Flush:
			deepens = false
		case kind != pkt.Text:
			return update, errGarbage
		default:
			if err := update.add(string(text)); err != nil {
				return update, err
			}
		}
	}
	for {
		text, kind, err := lines.next()
		if err != nil {
			return update, err
		}
		if kind != pkt.Text || !isAcknowledgment(text) {
			return update, errGarbage
		}
		ahead, err := in.Peek(7) // the length and start of a line, or the start of a pack
		if err != nil && !errors.Is(err, io.EOF) {
			return update, err
		}
		if len(ahead) < 7 || !isAcknowledgment(ahead[4:]) {
			return update, nil
		}
	}
}

func isAcknowledgment(text []byte) bool {
	return bytes.HasPrefix(text, []byte("ACK")) || bytes.HasPrefix(text, []byte("NAK"))
}
