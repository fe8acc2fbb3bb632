// Package pkt reads and writes pkt-lines, the frames of Git's protocol.
package pkt

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// MaxLine is the maximum length of a line, including the four digits of its length.
const MaxLine = 65520

// Kind is a line of text, or one of the special lines.
type Kind int

// The kinds.
const (
	Text  Kind = iota
	Flush      // 0000, ends a message
	Delim      // 0001, ends a section
	End        // 0002, ends a response
)

// ErrFormat means that the input is not pkt-lines.
var ErrFormat = errors.New("not in pkt-line format")

// Reader reads lines. It holds one at a time.
type Reader struct {
	*bufio.Reader
	line []byte
}

// NewReader returns a Reader.
func NewReader(r io.Reader) *Reader { return &Reader{Reader: bufio.NewReader(r)} }

// Next returns the next line without its line feed. The text is valid until the next call. It returns [io.EOF]
// if the input ends before the line, and [io.ErrUnexpectedEOF] if it ends within.
func (r *Reader) Next() (text []byte, kind Kind, err error) {
	text, kind, err = r.Line()
	return bytes.TrimSuffix(text, []byte("\n")), kind, err
}

// Line is Next with the line feed, if any.
func (r *Reader) Line() (text []byte, kind Kind, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, err
	}
	length, err := strconv.ParseUint(string(head[:]), 16, 16)
	switch {
	case err != nil || length == 3 || length > MaxLine:
		return nil, 0, ErrFormat
	case length < 3:
		return nil, Flush + Kind(length), nil
	}
	if n := int(length - 4); cap(r.line) < n {
		r.line = make([]byte, n)
	}
	text = r.line[:length-4]
	_, err = io.ReadFull(r, text)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return text, Text, err
}

// Writer collects lines.
type Writer struct{ bytes.Buffer }

// Text adds a line of text. A longer one than fits is cut.
func (w *Writer) Text(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	line = line[:min(len(line), MaxLine-5)]
	fmt.Fprintf(&w.Buffer, "%04x%s\n", len(line)+5, line)
}

// Special adds a special line.
func (w *Writer) Special(kind Kind) { fmt.Fprintf(&w.Buffer, "%04x", int(kind-Flush)) }
