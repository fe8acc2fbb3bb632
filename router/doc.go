// Package router carries messages from a subscriber through locking and retries to a handler.
//
//	greet := func(msg *message.Message) ([]*message.Message, error) {
//		greeting := message.NewMessage(msg.UUID, []byte("Hello, "+string(msg.Payload)+"!"))
//		return router.Commit(msg, stream.Settlement{Outputs: []stream.Output{{Stream: "greeter:{0}:greetings", Message: greeting}}})
//	}
//	worker := router.Worker{
//		Client: client, Prefix: "greeter:{0}:", Group: "greeters",
//		Key:      func(msg *message.Message) string { return string(msg.Payload) }, // one message per name at a time
//		Handlers: map[string]message.HandlerFunc{"greeter:{0}:names": greet},
//	}
//	return worker.Run(ctx)
//
// A [Worker] is a [Route] for each topic in [New] and [Run], which can be composed otherwise: with another Pub/Sub, another lock,
// a tracer, several locks for a message.
//
// The router is Watermill's, with these middlewares around each handler, outermost first:
//
//	trace      creates a span for each delivery; optional
//	dispose    decides what an error means: ack, retry after a delay, failed result or dead letter
//	recover    turns a panic into an error
//	before     the route's own: may refuse a message, or settle it; optional
//	lock       one message at a time per key, across all processes
//	deaths     a message that was handled when its process died runs alone, or not again
//	handler    ends in [Commit]
//
// The router knows nothing of what its messages mean.
//
// # Failures
//
// The disposition, the scope and RetryAfter of an [events.Error] decide; its class is only a label.
//
//	handler's error               the message                                      counts as an attempt
//	none                          settled by Commit in one atomic step             –
//	retryable                     retried after RetryAfter, or an exponential      yes
//	                              delay with jitter
//	retryable, attempts used up   failed result and dead letter                    yes
//	none: process killed or hung  retried when it lapses; alone after the second   no
//	                              such death, dead letter after the third. What
//	                              only waited has none
//	contention, lost lease        retried after RetryAfter, or such a delay        no
//	retryable or contention, and  failed result and dead letter: nothing waits     –
//	older than MaxAge             for ever
//	permanent                     failed result at once; without Disposer.Failed,  –
//	                              or if it returns none, dead letter
//	permanent, scope none         failed result, if any; otherwise only acked.     –
//	                              Such as a held lock with locking.Skip
//	malformed                     dead letter                                      –
//	this process is stopping      returned to the stream at once                   no
//
// Each middleware is plain Watermill and works over any Pub/Sub. If the subscriber is not Lockstep's own, delays are
// requested in Watermill's delay metadata, results go out through the route's publisher, and settling is not atomic.
package router
