package server

import (
	"errors"
	"net/http"

	"lockstep/internal/cells"
	"lockstep/internal/operate"
)

func listWorkers(workers *operate.Workers) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		list, missing, err := workers.List(r.Context())
		return struct {
			Workers []operate.Worker `json:"workers"`
			Missing []string         `json:"missing_cells,omitempty"`
		}{list, operate.Names(missing)}, err
	})
}

func removeWorker(workers *operate.Workers) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		worker, err := workers.Remove(r.Context(), r.URL.Query().Get("cell"), r.PathValue("name"))
		if status := WorkerStatus(err); err != nil && status != http.StatusServiceUnavailable {
			return nil, problem{err, status}
		}
		return worker, err
	})
}

// WorkerStatus returns the HTTP status for an error about a worker.
func WorkerStatus(err error) int {
	switch {
	case errors.Is(err, operate.ErrNoWorker), errors.Is(err, cells.ErrNoCell):
		return http.StatusNotFound
	case errors.Is(err, operate.ErrWorkerStays):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}
