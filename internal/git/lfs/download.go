package lfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"lockstep/internal/git"
	"lockstep/internal/git/wire"
)

// spareBytes are read of a response that is longer than its object, so that the error says so.
const spareBytes = 1 << 20

// get downloads a task's object into the store. It continues where an earlier attempt has stopped.
func (c *Client) get(ctx context.Context, t *task) error {
	d, err := c.Store.begin(ctx, t.Pointer)
	if err != nil {
		return err
	}
	defer d.close()
	for {
		var err error
		if d.size < t.Size || t.Size == 0 {
			err = c.attempt(ctx, t, d)
		}
		if err != nil {
			if t.tries++; t.tries >= maxTries || !worthRetrying(err) {
				return err
			}
			if err := pause(ctx, t.tries); err != nil {
				return err
			}
			continue
		}
		ok, err := d.finish()
		if err != nil || ok {
			return err
		}
		if err := d.restart(); err != nil {
			return err
		}
		if t.tries++; t.tries >= maxTries {
			return c.failed(git.Retryable, git.ClassServer, "it sent other content than object %s of %q", t.OID, t.Path)
		}
	}
}

// attempt sends one request for the rest of an object.
func (c *Client) attempt(ctx context.Context, t *task, d *download) error {
	if t.action.isExpired() {
		if err := c.renew(ctx, t); err != nil {
			return err
		}
	}
	header := t.action.header.Clone()
	header.Del("Range")
	if d.size > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.size))
	}
	err := c.Sender.Send(ctx, wire.Request{
		Method: http.MethodGet, URL: t.action.href, Header: header, MaxBytes: t.Size + spareBytes,
		NoAuth: t.action.authenticated, OnDemand: !c.isOwn(t.action),
	}, func(res *http.Response) error { return c.receive(res, d) })
	return c.downloadError(t, d, err)
}

// isOwn reports whether an action is on the LFS server itself, which already has the credential. Any other may be
// presigned, in its query or headers: object stores refuse a presigned request that also has a credential.
func (c *Client) isOwn(a action) bool {
	return strings.HasPrefix(a.href, c.Server+"/") && !strings.Contains(a.href, "?") && len(a.header) == 0
}

// renew asks for another action of an object whose action has expired.
func (c *Client) renew(ctx context.Context, t *task) error {
	actions, missing, err := c.batch(ctx, []Object{t.Object})
	switch {
	case err != nil:
		return err
	case len(missing) > 0:
		return c.missing([]Object{t.Object}, missing)
	}
	t.action = actions[t.OID]
	if t.action.isExpired() {
		return c.failed(git.Retryable, git.ClassServer,
			"its download of object %s has expired already; check both clocks", t.OID)
	}
	return nil
}

// receive reads a response into the download.
func (c *Client) receive(res *http.Response, d *download) error {
	if res.StatusCode != http.StatusPartialContent || res.Header.Get("Content-Encoding") != "" ||
		!strings.HasPrefix(res.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", d.size)) {
		if res.StatusCode == http.StatusPartialContent { // another range than requested, or one of compressed bytes
			return errors.Join(errRange, d.restart())
		}
		if err := d.restart(); err != nil {
			return err
		}
	}
	w := io.Writer(d)
	if c.Count != nil {
		w = countingWriter{d, c.Count}
	}
	buffer := make([]byte, 64<<10)
	_, err := io.CopyBuffer(w, onlyReader{res.Body}, buffer)
	if err != nil {
		return err
	}
	if d.size < d.want.Size {
		return errShort
	}
	return nil
}

var (
	errRange = errors.New("it sent another range than requested")
	errShort = errors.New("it ended the download early")
)

// onlyReader hides the other methods of a reader, so that io.CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }

type countingWriter struct {
	io.Writer
	count func(bytes int64)
}

func (w countingWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.count(int64(n))
	return n, err
}

// downloadError classifies an error of a download.
func (c *Client) downloadError(t *task, d *download, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errShort): // the rest is requested next
		return c.failed(git.Retryable, git.ClassServer, "object %s of %q: %w", t.OID, t.Path, err)
	case errors.Is(err, errTooLong), errors.Is(err, errRange):
		if restartErr := d.restart(); restartErr != nil {
			return restartErr
		}
		return c.failed(git.Retryable, git.ClassServer, "object %s of %q: %w", t.OID, t.Path, err)
	}
	status, ok := errors.AsType[*wire.Status](err)
	if !ok {
		return err
	}
	switch status.Code {
	case http.StatusRequestedRangeNotSatisfiable:
		if restartErr := d.restart(); restartErr != nil {
			return restartErr
		}
		return c.failed(git.Retryable, git.ClassServer, "object %s of %q: it refuses to continue a download", t.OID, t.Path)
	case http.StatusUnauthorized, http.StatusForbidden:
		return c.refused(status)
	}
	return c.missing([]Object{t.Object}, map[OID]int{t.OID: status.Code})
}
