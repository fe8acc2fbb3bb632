package serve

import (
	"errors"
	"fmt"
	"io"

	"lockstep/internal/git/pkt"
)

// pktReader reads the lines of a request.
type pktReader struct {
	*pkt.Reader
	lines int                   // number of lines read
	hold  func(lines int) error // called for each linesStep lines; optional
}

func newPktReader(r io.Reader) *pktReader { return &pktReader{Reader: pkt.NewReader(r)} }

// pktEnd is the end of the input.
const pktEnd pkt.Kind = -1

// next returns the next line: see [pkt.Reader.Next].
func (p *pktReader) next() (text []byte, kind pkt.Kind, err error) {
	text, kind, err = p.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, pktEnd, nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, 0, refusef("the request ends too early")
	case errors.Is(err, pkt.ErrFormat):
		return nil, 0, refusef("the request is not in pkt-line format")
	case err != nil || kind != pkt.Text:
		return nil, kind, err
	}
	if p.lines++; p.lines > maxLines {
		return nil, 0, refusef("the request has more than %d lines", maxLines)
	}
	if p.hold != nil && p.lines%linesStep == 0 {
		if err := p.hold(linesStep); err != nil {
			return nil, 0, err
		}
	}
	return text, pkt.Text, nil
}

// refusal is an error that is sent to the client, as text after ERR.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// refusef returns a refusal.
func refusef(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }
