package follow

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Frame is one frame of the stream of results.
type Frame struct {
	Cursor string // position after the frame
	Data   []byte // result as a CloudEvents document; nil for the first frame and for heartbeats
}

// Stream receives results as server-sent events. It is not safe for concurrent use.
type Stream struct {
	body   io.ReadCloser
	lines  *bufio.Scanner
	cancel context.CancelCauseFunc
	ctx    context.Context
	silent *time.Timer
	pause  time.Duration
	cursor string
}

// maxSilence is how long a stream may be silent. Heartbeats arrive every 15 seconds.
const maxSilence = 45 * time.Second

const maxLine = 32 << 20 // bytes; a result names up to thousands of files

var errSilent = errors.New("no heartbeat of the reader")

// Results starts a stream of the results after a cursor, or from now on if it is "". The error may be a
// [*GoneError]. The caller closes the stream.
func (r *Reader) Results(ctx context.Context, after string) (*Stream, error) {
	return r.results(ctx, after, maxSilence)
}

func (r *Reader) results(ctx context.Context, after string, pause time.Duration) (*Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Stream{ctx: ctx, cancel: cancel, pause: pause, cursor: after}
	s.silent = time.AfterFunc(pause, func() { cancel(fmt.Errorf("%w for %v", errSilent, pause)) })
	header := map[string]string{"Accept": "text/event-stream"}
	if after != "" {
		header["Last-Event-ID"] = after
	}
	resp, err := r.openStream(ctx, header) //nolint:bodyclose // Close of the stream does
	if err != nil {
		s.silent.Stop()
		err = s.explain(err)
		cancel(nil)
		return nil, err
	}
	s.body, s.lines = resp.Body, bufio.NewScanner(resp.Body)
	s.lines.Buffer(nil, maxLine)
	return s, nil
}

func (r *Reader) openStream(ctx context.Context, header map[string]string) (*http.Response, error) {
	resp, err := r.send(ctx, http.MethodGet, "/api/v1/results", nil, header)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		_ = resp.Body.Close()
		return nil, errors.New("the response is not a stream of results; see docs/following.md")
	}
	return resp, nil
}

// explain replaces a cancellation error by the reason for the cancellation.
func (s *Stream) explain(err error) error {
	if cause := context.Cause(s.ctx); errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// Next returns the next frame. It fails when the connection is lost or silent for too long, and with a
// [*GoneError] when results are missing.
func (s *Stream) Next() (Frame, error) {
	s.silent.Reset(s.pause)
	defer s.silent.Stop() // the caller's own time between calls does not count as silence
	var data []string
	kind, any := "", false
	for s.lines.Scan() {
		s.silent.Reset(s.pause)
		line := s.lines.Text()
		if line == "" {
			if !any {
				continue
			}
			frame := Frame{Cursor: s.cursor}
			if len(data) > 0 {
				frame.Data = []byte(strings.Join(data, "\n"))
			}
			if kind == "gone" {
				return Frame{}, goneOf(frame.Data)
			}
			return frame, nil
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			s.cursor, any = value, true
		case "event":
			kind = value
		case "data":
			data, any = append(data, value), true
		}
	}
	err := s.lines.Err()
	if err == nil {
		err = errors.New("the reader closed the connection")
	}
	return Frame{}, s.explain(err)
}

// goneOf returns the error of the event gone.
func goneOf(data []byte) error {
	gone := &GoneError{}
	if err := json.Unmarshal(data, gone); err != nil {
		return fmt.Errorf("the reader's event gone cannot be decoded: %w", err)
	}
	return gone
}

// Close ends the stream.
func (s *Stream) Close() {
	s.silent.Stop()
	s.cancel(nil)
	_ = s.body.Close()
}
