package serve

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxPkt is the maximum length of a pkt-line, including the four digits of its length.
const maxPkt = 65520

// pktKind is a line of text, or one of the special lines.
type pktKind int

const (
	pktText  pktKind = iota
	pktFlush         // 0000, ends a message
	pktDelim         // 0001, ends a section
	pktEnd           // 0002, ends a response
	pktEOF           // the input ends
)

// pktReader reads the pkt-lines of a request. It holds one line at a time.
type pktReader struct {
	*bufio.Reader
	line  []byte
	lines int                   // number of lines read
	hold  func(lines int) error // called for each linesStep lines; optional
}

func newPktReader(r io.Reader) *pktReader { return &pktReader{Reader: bufio.NewReader(r)} }

// next returns the next line without its line feed. The text is valid until the next call.
func (p *pktReader) next() (text []byte, kind pktKind, err error) {
	var head [4]byte
	switch _, err := io.ReadFull(p, head[:]); {
	case errors.Is(err, io.EOF):
		return nil, pktEOF, nil
	case err != nil:
		return nil, 0, unexpectedEnd(err)
	}
	length, err := strconv.ParseUint(string(head[:]), 16, 16)
	switch {
	case err != nil || length == 3 || length > maxPkt:
		return nil, 0, refusef("the request is not in pkt-line format")
	case length < 3:
		return nil, pktFlush + pktKind(length), nil
	}
	if p.lines++; p.lines > maxLines {
		return nil, 0, refusef("the request has more than %d lines", maxLines)
	}
	if p.hold != nil && p.lines%linesStep == 0 {
		if err := p.hold(linesStep); err != nil {
			return nil, 0, err
		}
	}
	if n := int(length - 4); cap(p.line) < n {
		p.line = make([]byte, n)
	}
	text = p.line[:length-4]
	if _, err := io.ReadFull(p, text); err != nil {
		return nil, 0, unexpectedEnd(err)
	}
	return bytes.TrimSuffix(text, []byte("\n")), pktText, nil
}

// unexpectedEnd returns a refusal for a request that ends too early.
func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refusef("the request ends too early")
	}
	return err
}

// pktWriter collects the lines of a response before the pack.
type pktWriter struct{ bytes.Buffer }

// text adds a line of text. A longer one than fits is cut.
func (w *pktWriter) text(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	line = line[:min(len(line), maxPkt-5)]
	fmt.Fprintf(&w.Buffer, "%04x%s\n", len(line)+5, line)
}

func (w *pktWriter) special(kind pktKind) { fmt.Fprintf(&w.Buffer, "%04x", int(kind-pktFlush)) }

// refusal is an error that is sent to the client, as text after ERR.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// refusef returns a refusal.
func refusef(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }
