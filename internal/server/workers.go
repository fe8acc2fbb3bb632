package server

import (
	"net/http"

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
		return workers.Remove(r.Context(), r.URL.Query().Get("cell"), r.PathValue("name"))
	})
}
