-- Retry: add the original entry of a dead letter to its stream again, and remove the letter.
--
-- KEYS    1 dead stream   2 the stream that the entry was in
-- ARGV    1 ID of the letter
-- Returns {"retried", ID of the new entry}, or without changing anything
--         {"gone", ""}       the letter does not exist: it was retried, dropped or trimmed
--         {"elsewhere", ""}  the letter is from another stream
--         {"truncated", ""}  the letter has only some of the entry's fields
--         {"empty", ""}      the letter has no fields of the entry: the entry was trimmed before it was
--                            dead-lettered, or another program wrote the letter
-- Refuses with WRONGTYPE if a key is not a stream, and with OOM, without changing anything.
local letter = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not letter then return {'gone', ''} end

local stream, truncated, original = nil, false, {}
for i = 1, #letter[2], 2 do
  local name, value = letter[2][i], letter[2][i + 1]
  if name == 'stream' then
    stream = value
  elseif name == 'truncated' then
    truncated = true
  elseif string.sub(name, 1, 9) == 'original:' then
    original[#original + 1] = string.sub(name, 10)
    original[#original + 1] = value
  end
end
if stream ~= KEYS[2] then return {'elsewhere', ''} end
if truncated then return {'truncated', ''} end
if #original == 0 then return {'empty', ''} end

local id = redis.call('XADD', stream, '*', unpack(original))
redis.call('XDEL', KEYS[1], ARGV[1])
return {'retried', id}
