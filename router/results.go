package router

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// Results fits a function into a [Route] that follows what becomes of repositories. The route's
// subscriber has a consumer group of its own, which is given every result at least once; the route's
// disposer retries and makes dead letters, as it does of changes. Nothing reports a failure any
// further, so an error of the disposition Permanent is logged and the result is done with.
//
//	index := router.Results{Handler: reindex}
//	route := router.Route{Name: "index", Topic: namespace.Results(), Subscriber: subscriber, Handler: index.Handle}
//
// With a Locker and Request as the route's too, one result at a time is handled for each key, over all
// processes. The locker has a prefix of its own, with the stream's hash tag, as in
// "lockstep:{0}:index:lock:": under the workers' prefix a handler would keep its repository from being
// synced. Neither way are results in order: one that was retried comes after a later one. Who minds
// compares fences, which grow with each lease on a repository.
type Results struct {
	// Handler does what a result calls for. Its context ends with the lease, of which it may ask to be
	// sure ([locking.FromContext]). A result that it is given twice has the same ID.
	Handler func(ctx context.Context, result events.Result) error

	By func(events.Result) string // what the key of a result is, never empty; nil: its repository

	// Supersedes says that an earlier result need not be handled once a later one of the same key is.
	// Of the results that wait for one key the handler is then given the newest alone, whose Before
	// need not be what it was last given; the others are settled with it. Nil: each is handled. It
	// wants a Locker, and Key as the subscriber's key.
	Supersedes func(later, earlier events.Result) bool

	Log *slog.Logger // default slog.Default
}

// Handle hands a result to the handler and settles it. A polled result, after which nothing is other than
// it was, is settled at once, and so is a type of result that this version does not know, for a newer
// worker may write it; what is no result at all is malformed.
func (r *Results) Handle(msg *message.Message) ([]*message.Message, error) {
	if kind, passed := passedOver(msg); passed {
		r.log().DebugContext(msg.Context(), "result passed over", "job", msg.UUID, "type", kind)
		return Commit(msg, stream.Settlement{})
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return nil, err
	}
	describeResult(msg.Context(), result)
	delivery, ok := stream.DeliveryOf(msg)
	lease, held := locking.FromContext(msg.Context())
	if r.Supersedes == nil || !ok || !held {
		if err := r.Handler(msg.Context(), result); err != nil {
			return nil, err
		}
		return Commit(msg, stream.Settlement{})
	}
	newest, err := r.latest(msg.Context(), delivery, result)
	if err != nil { // Redis is at fault, not the result
		return nil, &events.Error{Disposition: events.Contention, Class: events.ClassInternal, Err: err}
	}
	if newest != nil {
		result = newest.result
	}
	if err := r.Handler(msg.Context(), result); err != nil {
		return nil, err
	}
	produced, err := Commit(msg, stream.Settlement{})
	if err == nil && newest != nil && msg.Context().Err() == nil { // else nobody waits
		r.cover(msg, delivery, lease, newest)
	}
	return produced, err
}

// Key is the key of a result, for [stream.SubscriberConfig]: that of its lock. Results of one key then
// cannot fill the window, and know of each other.
func (r *Results) Key(msg *message.Message) string {
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return ""
	}
	return r.key(result)
}

// Request asks for the lease on a result's key. A result that is passed over has a lease to itself, and
// waits for nobody.
func (r *Results) Request(msg *message.Message) ([]locking.Request, error) {
	if kind, passed := passedOver(msg); passed {
		return []locking.Request{{Key: "unknown/" + msg.UUID, Job: msg.UUID, Operation: kind}}, nil
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return nil, err
	}
	return []locking.Request{{Key: r.key(result), Job: result.ID, Operation: "follow"}}, nil
}

// key is what a result is about, as far as the lock is concerned.
func (r *Results) key(result events.Result) string {
	if r.By == nil {
		return result.Repo.Key()
	}
	return r.By(result)
}

func (r *Results) log() *slog.Logger {
	if r.Log == nil {
		return slog.Default()
	}
	return r.Log
}

// passedOver tells a polled result, and one of a type, or of a version of one, that came after this program.
func passedOver(msg *message.Message) (kind string, passed bool) {
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
