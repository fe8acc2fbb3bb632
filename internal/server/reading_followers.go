package server

import (
	"encoding/json"
	"errors"
	"net/http"

	"lockstep/internal/access"
	"lockstep/internal/feed"
)

const maxReport = 16 << 10 // bytes; the cursor has up to 8 KB

// putFollower stores the report of a follower.
func (s *Reading) putFollower(w http.ResponseWriter, r *http.Request, from request) error {
	if s.Followers == nil {
		return access.ErrNotFound
	}
	body, ok := readBody(w, r, maxReport)
	if !ok {
		return nil
	}
	var report feed.Report
	if err := json.Unmarshal(body, &report); err != nil {
		return badRequest(errors.New("want a JSON object with cursor, repos, behind and version"))
	}
	token := ""
	if !from.who.Operator {
		token = access.HashOf(access.TokenOf(r))
	}
	switch err := s.Followers.Put(r.Context(), from.who.App, r.PathValue("name"), token, report); {
	case errors.Is(err, feed.ErrBadReport):
		return badRequest(err)
	case errors.Is(err, feed.ErrTooManyFollowers):
		return problem{err, http.StatusTooManyRequests}
	case err != nil:
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
