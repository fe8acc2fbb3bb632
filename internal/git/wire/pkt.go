package wire

import (
	"bytes"
	"errors"
	"io"

	"lockstep/internal/git/pkt"
)

var errGarbage = errors.New("the response is invalid")

// errorLine is the text of a remote's ERR line, which is not repeated.
type errorLine string

func (e errorLine) Error() string { return "the remote sent an error line" }

// pktReader reads the lines of a response.
type pktReader struct {
	*pkt.Reader
	left    int   // bytes of lines before tooLong
	tooLong error // nil for no limit
}

func newPktReader(r io.Reader) *pktReader { return &pktReader{Reader: pkt.NewReader(r)} }

// next returns the next line: see [pkt.Reader.Next]. The end of the input is an error, since a message ends with a
// flush.
func (p *pktReader) next() (text []byte, kind pkt.Kind, err error) {
	text, kind, err = p.Next()
	p.left -= len(text) + 4
	why, isError := bytes.CutPrefix(text, []byte("ERR "))
	switch {
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	case errors.Is(err, pkt.ErrFormat):
		err = errGarbage
	case err != nil:
	case p.left < 0 && p.tooLong != nil:
		err = p.tooLong
	case isError:
		err = errorLine(why)
	}
	return text, kind, err
}

// pktWriter builds a request.
type pktWriter struct{ pkt.Writer }
