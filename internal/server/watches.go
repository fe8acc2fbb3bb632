package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/watch"
)

const maxWatch = 2 << 20 // bytes per document; enough for 10,000 views

func listWatches(watches *operate.Watches) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		values := r.URL.Query()
		limit, err := pageLimit(r)
		if err != nil {
			return nil, badRequest(err)
		}
		query := watch.Query{Prefix: values.Get("prefix"), App: values.Get("app"), After: values.Get("after"), Limit: limit}
		page, err := watches.Page(r.Context(), query)
		return page, watchProblem(err)
	})
}

func putWatch(watches *operate.Watches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := readBody(w, r, maxWatch)
		if !ok {
			return
		}
		put, err := readWatch(body)
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		registry, err := watches.In(put.Repo)
		if err != nil {
			failWith(w, r, err)
			return
		}
		set, err := registry.Of(r.Context(), put.Repo)
		if err == nil {
			_, err = registry.Put(r.Context(), put)
		}
		if err != nil {
			failWith(w, r, watchProblem(err))
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

// readWatch parses one watch. It clears Silenced, so that storing a watch enables its notifications again.
func readWatch(body []byte) (watch.Watch, error) {
	var w watch.Watch
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(&w); err != nil {
		return watch.Watch{}, fmt.Errorf("invalid watch: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return watch.Watch{}, errors.New("invalid watch: unexpected data after the JSON object")
	}
	w.Silenced = ""
	return watch.New(w)
}

func removeWatch(watches *operate.Watches) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		values := r.URL.Query()
		repo, err := events.ParseRepoPath(values.Get("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		ref, err := watch.ParseSelector(values.Get("ref"))
		if err != nil {
			return nil, badRequest(fmt.Errorf("ref: %w", err))
		}
		if values.Get("app") == "" {
			return nil, badRequest(errors.New("app is missing"))
		}
		registry, err := watches.In(repo)
		if err != nil {
			return nil, err
		}
		removed, err := registry.Remove(r.Context(), watch.Key{App: values.Get("app"), Repo: repo, Ref: ref})
		if err != nil {
			return nil, watchProblem(err)
		}
		if removed == 0 {
			return nil, problem{errors.New("no such watch"), http.StatusNotFound}
		}
		return map[string]int{"removed": removed}, nil
	})
}

func watchProblem(err error) error {
	switch class := events.ClassOf(err); {
	case events.DispositionOf(err) == events.Malformed:
		return badRequest(err)
	case class == events.ClassConflict:
		return problem{err, http.StatusConflict}
	case class == events.ClassConfig: // a stored watch cannot be read
		return problem{err, http.StatusInternalServerError}
	}
	return err
}
