// Writes javascript_headers.jsonl: headers as amqplib and rabbitmq-client encode them. See README.md.
const path = require('path')
const modules = path.resolve('node_modules') // the packages do not export their encoders
const { encodeTable } = require(path.join(modules, 'amqplib/lib/codec.js'))
const codec = require(path.join(modules, 'rabbitmq-client/lib/codec.js'))

const numbers = [0, -0, 1, -1, 0.5, 0.1, -1.5, 3e38, 1e308, 5e-324]
for (const bits of [7, 8, 15, 16, 31, 32, 49, 50, 51, 53, 62, 63, 64])
  for (const off of [-1, 0, 1]) for (const sign of [1, -1]) numbers.push(sign * (2 ** bits + off))
const values = [
  null, true, false, '', 'text', 'é🐇', ...numbers, [], {}, [1, 300, 'a', null], [0.5, [70000]], { a: 1 }, { b: 'x', a: 2 },
  { z: 1, 10: 2, 2: 'b', '01': 3, n: { m: [true] } }, { $bytes: '' }, { $bytes: '00ff80' }, [{ $bytes: '6162' }], { $date: 1700000000 },
  [{ $date: 0 }],
]

function revived(value) {
  if (value === null || typeof value !== 'object') return value
  if (Array.isArray(value)) return value.map(revived)
  if ('$bytes' in value) return Buffer.from(value.$bytes, 'hex')
  if ('$date' in value) return new Date(value.$date * 1000)
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revived(item)]))
}

const encoders = {
  amqplib(headers) {
    const buffer = Buffer.alloc(4096)
    return buffer.subarray(0, encodeTable(buffer, headers, 0))
  },
  'rabbitmq-client'(headers) {
    const frame = codec.encodeFrame({ type: codec.FrameType.HEADER, channelId: 1, bodySize: 0, fields: { headers } })
    return frame.subarray(21, -1) // behind the frame's and the content's header
  },
}
// JSON has no -0, and Python would read large numbers as other ones: so numbers are written as the bits of a double.
function written(value) {
  if (typeof value === 'number') {
    const bits = Buffer.alloc(8)
    bits.writeDoubleBE(value)
    return { $number: bits.toString('hex') }
  }
  if (value === null || typeof value !== 'object' || '$bytes' in value || '$date' in value) return value
  if (Array.isArray(value)) return value.map(written)
  return { $object: Object.entries(value).map(([name, item]) => [name, written(item)]) }
}

function tableOf(encoded, value) {
  try {
    return encoded({ h: revived(value) }).toString('hex')
  } catch (error) {
    return null // the client refuses the value
  }
}

for (const [client, encoded] of Object.entries(encoders))
  for (const value of values)
    console.log(JSON.stringify({ client, value: written(value), table: tableOf(encoded, value) }))
