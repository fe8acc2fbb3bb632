package server

import (
	"net/http"

	"lockstep/internal/notify"
	"lockstep/internal/operate"
)

func listOutboxes(outboxes *operate.Outboxes) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		apps, missing, err := outboxes.Apps(r.Context())
		return struct {
			Apps    []notify.App `json:"apps"`
			Missing []string     `json:"missing_cells,omitempty"`
		}{apps, operate.Names(missing)}, err
	})
}

func showOutbox(outboxes *operate.Outboxes) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		limit, err := pageLimit(r)
		if err != nil {
			return nil, badRequest(err)
		}
		boxes, more, missing, err := outboxes.Of(r.Context(), r.PathValue("app"), limit)
		return struct {
			Boxes   []notify.Box `json:"repositories"`
			More    bool         `json:"more,omitempty"`
			Missing []string     `json:"missing_cells,omitempty"`
		}{boxes, more, operate.Names(missing)}, err
	})
}

func sendOutbox(outboxes *operate.Outboxes) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		return outboxes.Send(r.Context(), r.PathValue("app"))
	})
}
