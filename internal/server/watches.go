package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"lockstep/events"
	"lockstep/internal/watch"
)

// Watches is the registry that the API shows and changes; a [watch.Registry] is.
type Watches interface {
	Of(ctx context.Context, repo events.RepoPath) (watch.Set, error)
	Put(ctx context.Context, watches ...watch.Watch) (changed int, err error)
	Remove(ctx context.Context, keys ...watch.Key) (removed int, err error)
	List(ctx context.Context, q watch.Query) (watch.Page, error)
}

const (
	maxWatch    = 64 << 10 // bytes of a document
	mostWatches = 1000     // on a page
)

func listWatches(watches Watches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.URL.Query()
		query := watch.Query{Prefix: values.Get("prefix"), App: values.Get("app"), After: values.Get("after")}
		if text := values.Get("limit"); text != "" {
			limit, err := strconv.Atoi(text)
			if err != nil || limit < 1 || limit > mostWatches {
				fail(w, http.StatusBadRequest, fmt.Errorf("limit: want 1 to %d", mostWatches))
				return
			}
			query.Limit = limit
		}
		page, err := watches.List(r.Context(), query)
		if err != nil {
			failWatch(w, err)
			return
		}
		list := struct {
			Watches []watch.Watch `json:"watches"`
			Next    string        `json:"next,omitempty"`
		}{page.Watches, page.Next}
		if list.Watches == nil {
			list.Watches = []watch.Watch{}
		}
		reply(w, http.StatusOK, list)
	})
}

func putWatch(watches Watches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWatch))
		if err != nil {
			if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
				fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", maxWatch))
				return
			}
			fail(w, http.StatusBadRequest, errors.New("the body could not be read"))
			return
		}
		put, err := readWatch(body)
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		set, err := watches.Of(r.Context(), put.Repo)
		if err == nil {
			_, err = watches.Put(r.Context(), put)
		}
		if err != nil {
			failWatch(w, err)
			return
		}
		status := http.StatusCreated
		if slices.ContainsFunc(set.Watches, func(w watch.Watch) bool { return sameKey(w.Key(), put.Key()) }) {
			status = http.StatusOK
		}
		reply(w, status, put)
	})
}

func sameKey(a, b watch.Key) bool { return a.App == b.App && a.Repo.Equal(b.Repo) && a.Ref == b.Ref }

// readWatch reads one watch. Whoever puts it wants its app to be notified, whatever it was before.
func readWatch(body []byte) (watch.Watch, error) {
	var w watch.Watch
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&w); err != nil {
		return watch.Watch{}, fmt.Errorf("no watch: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return watch.Watch{}, errors.New("no watch: something follows it")
	}
	w.Silenced = ""
	return watch.New(w)
}

func removeWatch(watches Watches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.URL.Query()
		repo, err := events.ParseRepoPath(values.Get("repo"))
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		ref, err := watch.ParseSelector(values.Get("ref"))
		if err != nil {
			fail(w, http.StatusBadRequest, fmt.Errorf("ref: %w", err))
			return
		}
		if values.Get("app") == "" {
			fail(w, http.StatusBadRequest, errors.New("app is missing"))
			return
		}
		removed, err := watches.Remove(r.Context(), watch.Key{App: values.Get("app"), Repo: repo, Ref: ref})
		switch {
		case err != nil:
			failWatch(w, err)
		case removed == 0:
			fail(w, http.StatusNotFound, errors.New("there is no such watch"))
		default:
			reply(w, http.StatusOK, map[string]int{"removed": removed})
		}
	})
}

func failWatch(w http.ResponseWriter, err error) {
	switch class := events.ClassOf(err); {
	case errors.Is(err, watch.ErrBadAfter), class == events.ClassMalformed:
		fail(w, http.StatusBadRequest, err)
	case class == events.ClassConflict:
		fail(w, http.StatusConflict, err)
	case class == events.ClassConfig: // one that cannot be read
		fail(w, http.StatusInternalServerError, err)
	default:
		unavailable(w)
	}
}
