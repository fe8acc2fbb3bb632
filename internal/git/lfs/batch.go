package lfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"lockstep/internal/git"
	"lockstep/internal/git/wire"
)

const (
	maxBatch    = 100 // objects in a request; GitHub's limit
	mediaType   = "application/vnd.git-lfs+json"
	expirySlack = 5 * time.Second // an action is not used in its last seconds

	// Bytes of a response. Decoding empty objects takes 60 times as much memory.
	maxResponse  = 64 << 10
	maxPerObject = 16 << 10
)

// batchRequest asks for download actions.
type batchRequest struct {
	Operation string        `json:"operation"`
	Transfers []string      `json:"transfers"`
	Ref       *batchRef     `json:"ref,omitempty"`
	Objects   []batchObject `json:"objects"`
	HashAlgo  string        `json:"hash_algo"`
}

type batchRef struct {
	Name string `json:"name"`
}

type batchObject struct {
	OID  string `json:"oid"`
	Size int64  `json:"size"`
}

type batchResponse struct {
	Transfer string `json:"transfer"`
	HashAlgo string `json:"hash_algo"`
	Objects  []struct {
		batchObject
		Authenticated bool `json:"authenticated"`
		Actions       struct {
			Download *struct {
				Href      string            `json:"href"`
				Header    map[string]string `json:"header"`
				ExpiresIn int64             `json:"expires_in"`
				ExpiresAt string            `json:"expires_at"`
			} `json:"download"`
		} `json:"actions"`
		Error *struct {
			Code int `json:"code"`
		} `json:"error"`
	} `json:"objects"`
}

// action is how to download an object.
type action struct {
	href          string
	header        http.Header
	authenticated bool      // needs no credential
	expires       time.Time // zero for never
}

// isExpired reports whether the action must be asked for again.
func (a action) isExpired() bool {
	return !a.expires.IsZero() && time.Until(a.expires) < expirySlack
}

// batch asks for the actions of up to maxBatch objects. missing says why an object has none.
func (c *Client) batch(
	ctx context.Context, objects []Object, optional bool,
) (actions map[OID]action, missing map[OID]int, err error) {
	request := batchRequest{Operation: "download", Transfers: []string{"basic"}, HashAlgo: "sha256"}
	if c.Ref != "" {
		request.Ref = &batchRef{c.Ref}
	}
	for _, o := range objects {
		request.Objects = append(request.Objects, batchObject{o.OID.String(), o.Size})
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, nil, err
	}
	var response batchResponse
	asked := time.Now()
	err = c.Sender.Send(ctx, wire.Request{
		Method: http.MethodPost, URL: c.Server + "/objects/batch", Body: body, Optional: optional,
		MaxBytes: maxResponse + int64(len(objects))*maxPerObject,
		Header:   http.Header{"Accept": {mediaType}, "Content-Type": {mediaType}},
	}, func(res *http.Response) error {
		if err := json.NewDecoder(res.Body).Decode(&response); err != nil {
			return errInvalidBatch
		}
		_, err := io.Copy(io.Discard, res.Body) // so that the connection is used again
		return err
	})
	if err != nil {
		return nil, nil, c.batchError(err)
	}
	if response.Transfer != "" && response.Transfer != "basic" {
		return nil, nil, c.failed(git.Permanent, git.ClassConfig,
			"it requires another transfer than basic, which Lockstep does not support")
	}
	if response.HashAlgo != "" && response.HashAlgo != "sha256" {
		return nil, nil, c.failed(git.Permanent, git.ClassConfig,
			"it uses another hash than SHA-256, which Lockstep does not support")
	}
	return c.readActions(objects, response, asked)
}

var errInvalidBatch = errors.New("its response is not one of the batch API")

// readActions returns the actions for the objects, and the error codes of those without one.
func (c *Client) readActions(
	objects []Object, response batchResponse, asked time.Time,
) (actions map[OID]action, missing map[OID]int, err error) {
	wanted := map[OID]bool{}
	for _, o := range objects {
		wanted[o.OID] = true
	}
	actions, missing = map[OID]action{}, map[OID]int{}
	for _, o := range response.Objects {
		oid, ok := ParseOID(o.OID)
		download := o.Actions.Download
		switch {
		case !ok || !wanted[oid]:
		case o.Error != nil:
			missing[oid] = o.Error.Code
		case download != nil:
			a := action{href: download.Href, header: http.Header{}, authenticated: o.Authenticated}
			for name, value := range download.Header {
				a.header.Set(name, value)
			}
			if expires, err := time.Parse(time.RFC3339, download.ExpiresAt); err == nil && expires.Year() > 1 {
				a.expires = expires
			}
			if in := download.ExpiresIn; in != 0 {
				a.expires = asked.Add(time.Duration(max(min(in, 1<<31-1), -1<<31)) * time.Second)
			}
			if err := c.checkHref(a.href); err != nil {
				return nil, nil, err
			}
			actions[oid] = a
		}
	}
	for oid := range wanted {
		if _, ok := actions[oid]; !ok && missing[oid] == 0 {
			missing[oid] = http.StatusNotFound
		}
	}
	return actions, missing, nil
}

// checkHref refuses an href that Lockstep does not request.
func (c *Client) checkHref(href string) error {
	if err := checkURL(href); err != nil {
		return c.failed(git.Permanent, git.ClassConfig, "the href of an object %w", err)
	}
	to, err := url.Parse(href)
	server, serverErr := url.Parse(c.Server)
	if err != nil || serverErr != nil || server.Scheme == "https" && to.Scheme != "https" {
		return c.failed(git.Permanent, git.ClassConfig, "it is reached over https but sends downloads to http, "+
			"where others could read their tokens; correct its URL in its settings")
	}
	return nil
}

// host returns the server's host for errors.
func (c *Client) host() string {
	u, err := url.Parse(c.Server)
	if err != nil {
		return "the host"
	}
	return u.Host
}

func (c *Client) failed(d git.Retry, class git.Class, format string, args ...any) error {
	return git.Errorf(d, class, "the LFS server at %s: %w", c.host(), fmt.Errorf(format, args...))
}

// batchError classifies an error of the batch request.
func (c *Client) batchError(err error) error {
	if errors.Is(err, errInvalidBatch) {
		return c.failed(git.Retryable, git.ClassServer, "%w; check whether the repository has an LFS server", errInvalidBatch)
	}
	status, ok := errors.AsType[*wire.Status](err)
	if !ok {
		return err
	}
	switch status.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return c.refused(status)
	case http.StatusNotFound, http.StatusGone:
		return c.failed(git.Permanent, git.ClassNotFound, "there is none at its URL, or the credential may not use it "+
			"(%w); see lfs.url in .lfsconfig", status)
	case http.StatusRequestEntityTooLarge:
		return err // see Client.nextBatch
	}
	return c.failed(git.Permanent, git.ClassNotFound, "it refused the request (%w)", status)
}

// refused returns the error for a refused or missing credential.
func (c *Client) refused(status *wire.Status) error {
	if status.Anonymous {
		return c.failed(git.Permanent, git.ClassAuth,
			"it requires a credential (%w); name one in the watch, with the server's URL among its urls", status)
	}
	return c.failed(git.Permanent, git.ClassAuth,
		"it refused the credential (%w); check that it may read the repository's LFS objects", status)
}
