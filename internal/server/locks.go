package server

import (
	"errors"
	"net/http"
	"strconv"

	"lockstep/events"
	"lockstep/internal/operate"
)

func listLocks(leases *operate.Leases) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		held, missing, err := leases.List(r.Context())
		return struct {
			Locks   []operate.Lease `json:"locks"`
			Missing []string        `json:"missing_cells,omitempty"`
		}{held, operate.Names(missing)}, err
	})
}

func showLock(leases *operate.Leases) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		return leases.Get(r.Context(), "", repo)
	})
}

// releaseLock releases the lease with the fence in the request, and therefore never a newer one.
func releaseLock(leases *operate.Leases) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		fence, err := strconv.ParseUint(r.URL.Query().Get("fence"), 10, 64)
		if err != nil {
			return nil, badRequest(errors.New("want the fence of the lease to release, as in ?fence=1795223511284000"))
		}
		return leases.Release(r.Context(), "", repo, fence)
	})
}
