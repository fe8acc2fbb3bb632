package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events/stream"
)

// Route connects a topic to a handler.
type Route struct {
	Name       string // unique, for logs and metrics
	Topic      string
	Subscriber message.Subscriber
	Handler    message.HandlerFunc // ends in Commit, or returns messages for Publisher

	// Publisher publishes the messages that the handler returns. Optional: with Lockstep's own subscriber, Commit does.
	Publisher    message.Publisher
	PublishTopic string

	// Before are middlewares that run before the message's locks are acquired, outermost first. A message that one of them
	// refuses, or settles itself, costs no lease. Optional.
	Before []message.HandlerMiddleware

	Locker  Locker      // optional: nil disables locking
	Request RequestFunc // returns the locks that a message needs; required with a Locker
	Dispose Disposer

	// OnPoison is called under the message's locks before a message becomes a dead letter because it kills the process.
	// Optional.
	OnPoison func(msg *message.Message, err error)

	// Tracer creates a span for each delivery, see [Trace]. Messages that result from it continue the trace. Optional: nil
	// disables tracing, and no trace is read or written.
	Tracer trace.Tracer
}

// Config configures New.
type Config struct {
	Routes       []Route
	CloseTimeout time.Duration // timeout of Close; should be longer than the subscribers' Grace; default 30 s
	Log          *slog.Logger  // default slog.Default
}

const closeTimeout = 30 * time.Second

// New returns a Watermill router, for [Run]. Its Close waits for in-flight handlers, which the subscribers
// cancel after their Grace.
func New(cfg Config) (*message.Router, error) {
	if len(cfg.Routes) == 0 {
		return nil, errors.New("router: Config.Routes is empty")
	}
	cfg.CloseTimeout = cmp.Or(cfg.CloseTimeout, closeTimeout)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: cfg.CloseTimeout}, watermillLog(cfg.Log))
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	running := newRunning()
	for _, route := range cfg.Routes {
		if err := add(r, route, running); err != nil {
			return nil, fmt.Errorf("router: route %q: %w", route.Name, err)
		}
	}
	return r, nil
}

// Run runs r until ctx is done, then closes it, and returns when its last handler has ended or, with an
// error, after CloseTimeout. It also returns an error if a subscription fails. Close alone waits for its
// whole timeout if it comes before the subscriptions.
func Run(ctx context.Context, r *message.Router) error {
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-r.Running():
	case err := <-stopped:
		return err
	}
	select {
	case <-ctx.Done():
	case err := <-stopped:
		return err
	}
	return errors.Join(r.Close(), <-stopped)
}

func add(r *message.Router, route Route, running *running) error {
	if route.Name == "" || route.Topic == "" || route.Subscriber == nil || route.Handler == nil {
		return errors.New("Name, Topic, Subscriber and Handler are required")
	}
	if (route.Locker == nil) != (route.Request == nil) {
		return errors.New("Locker and Request must be set together")
	}
	if own, ok := route.Subscriber.(*stream.Subscriber); ok {
		route.Subscriber = own.Draining()
	}
	var h *message.Handler
	if route.Publisher == nil {
		h = r.AddConsumerHandler(route.Name, route.Topic, route.Subscriber, consume(route.Handler))
	} else {
		h = r.AddHandler(route.Name, route.Topic, route.Subscriber, route.PublishTopic, route.Publisher, route.Handler)
	}
	if route.Tracer != nil {
		h.AddMiddleware(Trace(route.Tracer, route.Topic))
	}
	h.AddMiddleware(route.Dispose.Middleware, middleware.Recoverer)
	h.AddMiddleware(route.Before...)
	if route.Locker != nil {
		h.AddMiddleware(Lock(route.Locker, route.Request))
	}
	h.AddMiddleware(countDeaths(running, route.OnPoison))
	return nil
}

// consume adapts a handler that publishes nothing through Watermill.
func consume(h message.HandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		produced, err := h(msg)
		if err == nil && len(produced) > 0 {
			return errors.New("router: the handler returned messages, but the route has no Publisher")
		}
		return err
	}
}

// watermillLog logs Watermill's own messages one level lower: its information is only useful for debugging.
func watermillLog(log *slog.Logger) watermill.LoggerAdapter {
	return watermill.NewSlogLoggerWithLevelMapping(log, map[slog.Level]slog.Level{
		slog.LevelInfo: slog.LevelDebug, slog.LevelDebug: slog.LevelDebug - 4,
	})
}
