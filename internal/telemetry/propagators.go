package telemetry

import (
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/otel/propagation"
)

// propagatorOf returns the propagator that a value of OTEL_PROPAGATORS selects. There is one for W3C Trace
// Context alone, the default; baggage is accepted, and dropped, as there is none. The error names the others.
func propagatorOf(selected string) (propagation.TextMapPropagator, error) {
	none := propagation.NewCompositeTextMapPropagator()
	if strings.TrimSpace(selected) == "" {
		return propagation.TraceContext{}, nil
	}
	chosen := none
	var unknown []string
	for name := range strings.SplitSeq(selected, ",") {
		switch name = strings.TrimSpace(name); name {
		case "tracecontext":
			chosen = propagation.TraceContext{}
		case "baggage", "":
		case "none":
			return none, nil
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return chosen, fmt.Errorf("OTEL_PROPAGATORS: %q ignored: want tracecontext or none", unknown)
	}
	return chosen, nil
}

// Propagator returns what OTEL_PROPAGATORS selects for the headers of HTTP requests. Messages always have W3C
// Trace Context.
func (t *Traces) Propagator() propagation.TextMapPropagator {
	selected, _ := propagatorOf(os.Getenv("OTEL_PROPAGATORS")) // OpenTraces has logged the error
	return selected
}
