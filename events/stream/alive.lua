-- Alive: shared by the scripts that send a consumer's heartbeat, which it precedes.

-- heartbeat resets the idle time of a consumer, which Redis before 7.2 resets only when the consumer receives something. It
-- creates the consumer if it does not exist.
local function heartbeat(stream, group, consumer)
  local pending = redis.call('XPENDING', stream, group, '-', '+', 16, consumer)
  for _, p in ipairs(pending) do
    -- Since Redis 7.0, XCLAIM forgets an entry that was trimmed, which its handler may still settle.
    if redis.call('XRANGE', stream, p[1], p[1])[1] then
      -- Claiming an entry from oneself keeps the entry's own idle time and number of deliveries.
      redis.call('XCLAIM', stream, group, consumer, 0, p[1], 'IDLE', p[3], 'RETRYCOUNT', p[4], 'JUSTID')
      return
    end
  end
  if not pending[1] then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
    redis.call('XGROUP', 'CREATECONSUMER', stream, group, consumer)
  end
end

