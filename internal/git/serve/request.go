package serve

import (
	"math"
	"strconv"
	"strings"

	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

// Bounds of one request.
const (
	maxLines    = 250_000   // pkt-lines
	maxRequest  = 32 << 20  // bytes, both as sent and inflated
	maxCommits  = 5_000_000 // commits read
	haveWalk    = 20_000    // visible commits read to find which haves a sender may name, if the repository is restricted
	unlimited   = 1<<31 - 1 // Git's depth for the whole history
	maxPrefixes = 32        // ref-prefixes; with more, all refs are listed
)

// fetchRequest is a request for a pack, of either protocol.
type fetchRequest struct {
	format object.Format
	wants  []object.ID
	haves  []object.ID
	done   bool

	shallow  []object.ID // commits whose parents the client lacks
	depth    int         // 0 for none
	relative bool        // depth counts from shallow
	since    int64       // Unix time; 0 for none
	not      []string    // refs whose history is left out

	thin, ofs, tags bool
	waitForDone     bool // protocol 2 only

	// Protocol 0 only.
	detailed   bool // the client understands all acknowledgements, otherwise only the first
	noDone     bool
	sideband   int  // maximum length of a line of the pack; 0 for none
	negotiates bool // the request continues after the wants
}

// deepens reports whether the request changes how much history the client has.
func (r *fetchRequest) deepens() bool { return r.depth > 0 || r.since != 0 || len(r.not) > 0 }

// parseID parses an ID of the repository's format.
func (r *fetchRequest) parseID(text string) (object.ID, error) {
	if len(text) != 2*r.format.Size() || !object.IsID(text) {
		return object.ZeroID, refusef("%.80q is not a %s object ID", text, r.format)
	}
	return object.ParseID(text), nil
}

func (r *fetchRequest) addID(to *[]object.ID, text string) error {
	id, err := r.parseID(text)
	if err != nil {
		return err
	}
	*to = append(*to, id)
	return nil
}

// addHistory parses a line about how much history the client has or wants. ok is false if it is another line.
func (r *fetchRequest) addHistory(line string) (ok bool, err error) {
	name, value, _ := strings.Cut(line, " ")
	switch name {
	case "shallow":
		return true, r.addID(&r.shallow, value)
	case "deepen":
		depth, err := strconv.ParseInt(value, 10, 64)
		if err != nil || depth < 0 {
			return true, refusef("invalid depth %.20q", value)
		}
		r.depth = int(min(depth, unlimited))
	case "deepen-since":
		since, err := strconv.ParseInt(value, 10, 64)
		if err != nil || since <= 0 || since == math.MaxInt64 {
			return true, refusef("invalid time %.20q in deepen-since", value)
		}
		r.since = since
	case "deepen-not":
		r.not = append(r.not, value)
	default:
		return false, nil
	}
	return true, nil
}

// check refuses a request that contradicts itself.
func (r *fetchRequest) check() error {
	if r.depth > 0 && (r.since != 0 || len(r.not) > 0) {
		return refusef("deepen and deepen-since (or deepen-not) cannot be used together")
	}
	return nil
}

// parseFetch2 parses the arguments of fetch in protocol 2.
func parseFetch2(lines *pktReader, format object.Format) (*fetchRequest, error) {
	r := &fetchRequest{format: format, sideband: pkt.MaxLine}
	for {
		text, kind, err := lines.next()
		switch {
		case err != nil:
			return nil, err
		case kind == pkt.Flush:
			return r, r.check()
		case kind != pkt.Text:
			return nil, refusef("the arguments of fetch do not end in a flush")
		}
		if err := r.addArgument(string(text)); err != nil {
			return nil, err
		}
	}
}

// addArgument parses an argument of fetch in protocol 2.
func (r *fetchRequest) addArgument(line string) error {
	if ok, err := r.addHistory(line); ok {
		return err
	}
	name, value, _ := strings.Cut(line, " ")
	if r.setOption(name) {
		return nil
	}
	switch name {
	case "want":
		return r.addID(&r.wants, value)
	case "have":
		return r.addID(&r.haves, value)
	case "done":
		r.done = true
	case "wait-for-done":
		r.waitForDone = true
	case "no-progress":
	case "filter":
		return refusef("filters are not supported: clone without --filter")
	default:
		return refusef("unknown argument %.80q of fetch", line)
	}
	return nil
}

// parseFetch0 parses a request of protocol 0: wants, a flush, and haves up to a flush or done.
func parseFetch0(lines *pktReader, format object.Format) (*fetchRequest, error) {
	r := &fetchRequest{format: format}
	for {
		text, kind, err := lines.next()
		if err != nil {
			return nil, err
		}
		if kind != pkt.Text {
			break
		}
		if err := r.addWant(string(text)); err != nil {
			return nil, err
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	for {
		text, kind, err := lines.next()
		line := string(text)
		switch {
		case err != nil:
			return nil, err
		case kind == pktEnd:
			return r, nil
		case kind != pkt.Text:
			r.negotiates = true
			return r, nil
		case line == "done":
			r.negotiates, r.done = true, true
			return r, nil
		case !strings.HasPrefix(line, "have "):
			return nil, refusef("expected have or done, not %.80q", line)
		}
		r.negotiates = true
		if err := r.addID(&r.haves, line[len("have "):]); err != nil {
			return nil, err
		}
	}
}

// addWant parses a line before the first flush in protocol 0. A want may be followed by capabilities.
func (r *fetchRequest) addWant(line string) error {
	if ok, err := r.addHistory(line); ok {
		return err
	}
	rest, ok := strings.CutPrefix(line, "want ")
	if !ok {
		return refusef("expected want, not %.80q", line)
	}
	id, capabilities, _ := strings.Cut(rest, " ")
	for capability := range strings.FieldsSeq(capabilities) {
		r.use(capability)
	}
	return r.addID(&r.wants, id)
}

// use notes a capability of a client of protocol 0. Unknown ones are ignored, as Git does.
func (r *fetchRequest) use(capability string) {
	if r.setOption(capability) {
		return
	}
	switch capability {
	case "multi_ack_detailed":
		r.detailed = true
	case "no-done":
		r.noDone = true
	case "side-band-64k":
		r.sideband = pkt.MaxLine
	}
}

// setOption sets what is an argument of fetch in protocol 2 and a capability in protocol 0. It returns false
// for another name.
func (r *fetchRequest) setOption(name string) bool {
	switch name {
	case "thin-pack":
		r.thin = true
	case "ofs-delta":
		r.ofs = true
	case "include-tag":
		r.tags = true
	case "deepen-relative":
		r.relative = true
	default:
		return false
	}
	return true
}
