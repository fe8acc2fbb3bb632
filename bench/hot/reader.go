package hot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
)

// reader is a process that acks messages, one after the other.
type reader struct {
	prefix string
	work   time.Duration
}

const readerCommand = "hot-reader"

// NewReaderCommand returns the hidden command of the process that bench hot huge measures.
func NewReaderCommand(std term.Streams) *cobra.Command {
	var r reader
	cmd := rig.WorkerCommand(&cobra.Command{
		Use:   readerCommand,
		Short: "The reader of bench hot huge",
	}, term.NoArgs, func(cmd *cobra.Command, _ []string, server redisx.Server) error {
		namespace, err := events.ParseNamespace(r.prefix)
		if err != nil {
			return term.UsageError(err)
		}
		return r.run(cmd.Context(), server, namespace, bufio.NewReader(cmd.InOrStdin()), std.Stdout)
	})
	flags := cmd.Flags()
	flags.StringVar(&r.prefix, "prefix", "", "`prefix` of all keys")
	flags.DurationVar(&r.work, "work", 0, "pause before each ack")
	return cmd
}

// run prints ready, waits for the start, and prints the UUID of each message that it acks, until standard input ends.
func (r reader) run(ctx context.Context, server redisx.Server, namespace events.Namespace, stdin *bufio.Reader, stdout io.Writer) error {
	client := server.Open()
	defer client.Close()
	if err := rig.AwaitStart(stdin, stdout); err != nil {
		return err
	}
	subscriber, err := newSubscriber(stream.SubscriberConfig{Redis: client, Reader: server.Open()}, namespace)
	if err != nil {
		return err
	}
	messages, err := subscriber.Subscribe(ctx, namespace.Changes())
	if err != nil {
		return errors.Join(err, subscriber.Close())
	}
	closed := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		closed <- subscriber.Close()
	}()
	for msg := range messages {
		time.Sleep(r.work)
		msg.Ack()
		if _, err := fmt.Fprintln(stdout, msg.UUID); err != nil {
			return err
		}
	}
	return <-closed
}

// newSubscriber completes the configuration of a subscriber of the changes.
func newSubscriber(cfg stream.SubscriberConfig, namespace events.Namespace) (*stream.Subscriber, error) {
	cfg.Prefix, cfg.Dead, cfg.Group = string(namespace), namespace.Dead(), events.WorkersGroup
	cfg.Log = slog.New(slog.DiscardHandler)
	return stream.NewSubscriber(cfg)
}
