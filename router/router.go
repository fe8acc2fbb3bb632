package router

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"go.opentelemetry.io/otel/trace"
)

// Route leads the messages of one topic to a handler.
type Route struct {
	Name       string // unique, for logs and metrics
	Topic      string
	Subscriber message.Subscriber
	Handler    message.HandlerFunc // ends in Commit, or returns messages for Publisher

	// Publisher takes what the handler returns, to PublishTopic. With Lockstep's own subscriber
	// Commit publishes in the settling step itself, and none is needed.
	Publisher    message.Publisher
	PublishTopic string

	Locker  Locker      // nil: no lock
	Request RequestFunc // which locks a message wants; required with a Locker
	Slots   *Slots      // nil: unbounded
	Dispose Disposer

	// Tracer makes a span of each delivery, below the one that the message's metadata names by W3C Trace Context,
	// and what comes of the message carries it on. Nil: there are none, and nothing is read or written of traces.
	Tracer trace.Tracer
}

// Config configures New.
type Config struct {
	Routes []Route
	// CloseTimeout bounds Close. It should be longer than the subscribers' own grace.
	CloseTimeout time.Duration // default 30 s
	Log          *slog.Logger  // default slog.Default
}

// New assembles a Watermill router. Run it, and Close it to drain: what is in flight finishes
// within the subscriber's grace or goes back to the stream.
func New(cfg Config) (*message.Router, error) {
	if len(cfg.Routes) == 0 {
		return nil, errors.New("router: Config.Routes is empty")
	}
	if cfg.CloseTimeout == 0 {
		cfg.CloseTimeout = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: cfg.CloseTimeout}, watermillLog(cfg.Log))
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	for _, route := range cfg.Routes {
		if err := add(r, route); err != nil {
			return nil, fmt.Errorf("router: route %q: %w", route.Name, err)
		}
	}
	return r, nil
}

func add(r *message.Router, route Route) error {
	if route.Name == "" || route.Topic == "" || route.Subscriber == nil || route.Handler == nil {
		return errors.New("Name, Topic, Subscriber and Handler are required")
	}
	if (route.Locker == nil) != (route.Request == nil) {
		return errors.New("Locker and Request come together")
	}
	var h *message.Handler
	if route.Publisher == nil {
		h = r.AddConsumerHandler(route.Name, route.Topic, route.Subscriber, consume(route.Handler))
	} else {
		h = r.AddHandler(route.Name, route.Topic, route.Subscriber, route.PublishTopic, route.Publisher, route.Handler)
	}
	if route.Tracer != nil {
		h.AddMiddleware(traced(route))
	}
	h.AddMiddleware(route.Dispose.Middleware, middleware.Recoverer)
	if route.Locker != nil {
		h.AddMiddleware(Lock(route.Locker, route.Request))
	}
	if route.Slots != nil {
		h.AddMiddleware(route.Slots.Middleware)
	}
	return nil
}

// consume fits a handler that publishes nothing through Watermill.
func consume(h message.HandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		produced, err := h(msg)
		if err == nil && len(produced) > 0 {
			return errors.New("router: the handler returned messages, and the route has no Publisher")
		}
		return err
	}
}

// watermillLog passes Watermill's own logs on one level down: what it calls information is of use
// in debugging it alone.
func watermillLog(log *slog.Logger) watermill.LoggerAdapter {
	return watermill.NewSlogLoggerWithLevelMapping(log, map[slog.Level]slog.Level{
		slog.LevelInfo: slog.LevelDebug, slog.LevelDebug: slog.LevelDebug - 4,
	})
}
