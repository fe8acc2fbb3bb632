package wire

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
	pktEnd           // 0002, ends a response over HTTP
)

var errGarbage = errors.New("the response is invalid")

// errorLine is the text of a remote's ERR line, which is not repeated.
type errorLine string

func (e errorLine) Error() string { return "the remote sent an error line" }

// pktReader reads pkt-lines. It holds one line at a time.
type pktReader struct {
	*bufio.Reader
	line    []byte
	left    int   // bytes of lines before tooLong
	tooLong error // nil for no limit
}

func newPktReader(r io.Reader) *pktReader { return &pktReader{Reader: bufio.NewReader(r)} }

// next returns the next line without its line feed. The text is valid until the next call. The end of the
// input is an error, since a message ends with a flush.
func (p *pktReader) next() (text []byte, kind pktKind, err error) {
	var head [4]byte
	if _, err := io.ReadFull(p, head[:]); err != nil {
		return nil, 0, unexpectedEnd(err)
	}
	length, err := strconv.ParseUint(string(head[:]), 16, 16)
	if err != nil || length == 3 || length > maxPkt {
		return nil, 0, errGarbage
	}
	if p.left -= max(int(length), 4); p.left < 0 && p.tooLong != nil {
		return nil, 0, p.tooLong
	}
	if length < 3 {
		return nil, pktFlush + pktKind(length), nil
	}
	if p.line == nil {
		p.line = make([]byte, maxPkt)
	}
	text = p.line[:length-4]
	if _, err := io.ReadFull(p, text); err != nil {
		return nil, 0, unexpectedEnd(err)
	}
	if why, ok := bytes.CutPrefix(text, []byte("ERR ")); ok {
		return nil, 0, errorLine(why)
	}
	return bytes.TrimSuffix(text, []byte("\n")), pktText, nil
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// pktWriter builds a request.
type pktWriter struct{ bytes.Buffer }

func (w *pktWriter) text(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Fprintf(&w.Buffer, "%04x%s\n", len(line)+5, line)
}

func (w *pktWriter) special(kind pktKind) { fmt.Fprintf(&w.Buffer, "%04x", int(kind-pktFlush)) }
