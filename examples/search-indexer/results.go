package main

import (
	"encoding/json"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
	"lockstep/router"
)

// handle calls follow with a result and settles it. Results arrive at least once and out of order: a retried result may
// come after a later one. Fences increase with each lease on a repository, so they show which result is later.
func (s *service) handle(msg *message.Message) ([]*message.Message, error) {
	if kind, skip := skipped(msg); skip {
		s.log.DebugContext(msg.Context(), "result skipped", "job", msg.UUID, "type", kind)
		return router.Commit(msg, stream.Settlement{})
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return nil, err // malformed: a dead letter
	}
	if err := s.follow(msg.Context(), result, router.Leases(msg).Confirm); err != nil {
		return nil, err
	}
	return router.Commit(msg, stream.Settlement{})
}

// key returns the repository of a result, for the subscriber and the lock.
func key(msg *message.Message) string {
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return ""
	}
	return result.Repo.Key()
}

// request asks for the lease on a result's repository. A skipped result gets a separate lease.
func request(msg *message.Message) ([]locking.Request, error) {
	if kind, skip := skipped(msg); skip {
		return []locking.Request{{Key: "skipped/" + msg.UUID, Job: msg.UUID, Operation: kind}}, nil
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return nil, err
	}
	return []locking.Request{{Key: result.Repo.Key(), Job: result.ID, Operation: "follow"}}, nil
}

// skipped reports whether a result is irrelevant here: a poll, or a type unknown to this version.
func skipped(msg *message.Message) (kind string, skip bool) {
	var document struct {
		SpecVersion string `json:"specversion"`
		Type        string `json:"type"`
	}
	if json.Unmarshal(msg.Payload, &document) != nil || document.SpecVersion == "" {
		return "", false
	}
	switch events.ResultType(document.Type) {
	case events.ResultSynced, events.ResultFailed, events.ResultRemoved, events.ResultMoved:
		return "", false
	}
	return document.Type, strings.HasPrefix(document.Type, "lockstep.result.")
}
